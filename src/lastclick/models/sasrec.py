"""SASRec: causal self-attention, trained to predict the next item at every position.

Kang & McAuley, "Self-Attentive Sequential Recommendation", ICDM 2018; trained with cross-entropy
over the whole catalogue at every real position, as *residual dominance* and *time to split* do.
The output vectors are the item embeddings (tied weights).
"""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel, ConfigDict, Field, PositiveInt

from lastclick.models.attention import Activation, BlockKind, SelfAttentive, causal_encoder


class Config(BaseModel):
    """Sizes and choices of one SASRec; ``inner_size`` is the width of the feed-forward part."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    block: BlockKind
    hidden_size: PositiveInt
    inner_size: PositiveInt
    n_layers: PositiveInt
    n_heads: PositiveInt
    activation: Activation
    attention_init: Literal["xavier_uniform", "normal"]
    dropout: float = Field(ge=0, lt=1)
    max_length: PositiveInt


class Model(SelfAttentive):
    """See the module's docstring; ``config.block`` chooses the block kind."""

    def __init__(self, config: Config, n_items: int):
        super().__init__(config, n_items, causal_encoder(config, n_items, config.block))
