"""Numbers as they stand in params.yaml, for whoever validates a part of it."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import BeforeValidator, Field, FiniteFloat


def _refuse_booleans(value: Any) -> Any:
    # pydantic would read true as 1, and YAML turns "yes" and "on" into true.
    if isinstance(value, bool):
        raise ValueError("should be a number, not true or false")
    return value


# Texts are read: YAML 1.1 takes 1e-06 for one, which is how DVC writes small numbers.
Number = Annotated[FiniteFloat, BeforeValidator(_refuse_booleans)]
Count = Annotated[int, Field(strict=True, gt=0)]
CountOrZero = Annotated[int, Field(strict=True, ge=0)]
