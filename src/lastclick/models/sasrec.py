"""SASRec: causal self-attention, trained to predict the next item at every position.

Kang & McAuley, "Self-Attentive Sequential Recommendation", ICDM 2018; trained with cross-entropy
over the whole catalogue at every real position, as *residual dominance* and *time to split* do.
The output vectors are the item embeddings (tied weights).
"""

from __future__ import annotations

from lastclick.models.attention import BlockKind, CausalConfig, SelfAttentive, causal_encoder


class Config(CausalConfig):
    """Sizes and choices of one SASRec."""

    block: BlockKind


class Model(SelfAttentive):
    """See the module's docstring; ``config.block`` chooses the block kind."""

    def __init__(self, config: Config, n_items: int):
        super().__init__(config, n_items, causal_encoder(config, n_items, config.block))
