"""lastclick: how much of a sequential recommender's answer comes from the last click alone.

The package holds pure functions over frames, tensors and numbers; the scripts in ``stages/``
connect them to files and parameters. Formulas are quoted from two papers, named throughout as

- *residual dominance*: Kozaki, Sakurai, Togo, Ogawa, Haseyama, "Residual Dominance as a
  Structural Account of Last-Item Reliance in Causal Self-Attention Recommenders", RecSys 2026,
  arXiv 2608.14021;
- *time to split*: Gusak et al., "Time to Split", RecSys 2025, arXiv 2507.16289.
"""
