"""Sparse multi-head latent attention with a lightning indexer (DeepSeek-V3.2)."""

from specsched_executor.model.sparse_mla.layouts import IndexerLayout

__all__ = ["IndexerLayout"]
