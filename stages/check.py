"""Find slips in params.yaml before a run. Not a stage: nothing depends on it."""

from lastclick import params
from lastclick.artifacts import require_decomposable
from lastclick.data.raw_formats import Raw
from lastclick.layouts import Section
from stages.command import run
from stages.download import Sources
from stages.trainable import is_given, model_config


def main() -> None:
    """Read params.yaml whole, with the sections that only one stage or model reads."""
    settings = params.load()
    for name, dataset in settings.datasets.items():
        params.validate_section(Sources, dataset.sources, f"datasets.{name}.sources")
        params.validate_section(Raw, dataset.raw, f"datasets.{name}.raw")
    for name, section in settings.models.items():
        if is_given(settings, name):
            params.validate_section(Section, section, f"models.{name}")
        else:
            model_config(settings, name)
    for name in settings.run.attention_models:
        require_decomposable(name)
    print("params.yaml: no slip found")


if __name__ == "__main__":
    run(main)
