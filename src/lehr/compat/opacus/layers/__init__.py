"""Opacus's layers: torch's own, with rules by which every record's gradient is had.

- ``dp_rnn``: ``DPRNN``, ``DPGRU``, ``DPLSTM``
- ``dp_multihead_attention``: ``DPMultiheadAttention``, ``SequenceBias``
"""

from lehr.compat.opacus.layers.dp_multihead_attention import DPMultiheadAttention, SequenceBias
from lehr.compat.opacus.layers.dp_rnn import DPGRU, DPLSTM, DPRNN

__all__ = ["DPGRU", "DPLSTM", "DPRNN", "DPMultiheadAttention", "SequenceBias"]
