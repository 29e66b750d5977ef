"""Find slips in params.yaml before a run. Not a stage: nothing depends on it."""

from pydantic import BaseModel

from lastclick import params
from lastclick.artifacts import model_module, require_decomposable
from lastclick.data.raw_formats import Raw
from lastclick.layouts import Section
from stages.command import run
from stages.download import Sources
from stages.given import is_given


def main() -> None:
    """Read params.yaml whole, with the sections that only one stage or model reads."""
    settings = params.load()
    for name, dataset in settings.datasets.items():
        params.validate_section(Sources, dataset.sources, f"datasets.{name}.sources")
        params.validate_section(Raw, dataset.raw, f"datasets.{name}.raw")
    for name, section in settings.models.items():
        config: type[BaseModel] = Section if is_given(settings, name) else model_module(name).Config
        params.validate_section(config, section, f"models.{name}")
    for name in settings.run.attention_models:
        require_decomposable(name)
    print("params.yaml: no slip found")


if __name__ == "__main__":
    run(main)
