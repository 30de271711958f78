"""Runs encoders with relative position bias, MPNet and DeBERTa, on packed rows.

``transformers`` does not run their attention through its interface. Here the same modules are called in the same order
on a packed row, with attention and bias computed within each pair.
"""

from functools import cache
from typing import TYPE_CHECKING

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers import PreTrainedModel
from transformers.activations import ACT2FN

from .attention import attend_packed
from .cpu.dropout import PairDropout
from .packing import Bias, Packing

if TYPE_CHECKING:
    from transformers.models.deberta_v2.modeling_deberta_v2 import (
        ConvLayer,
        DebertaV2Encoder,
        DisentangledSelfAttention,
    )
    from transformers.models.mpnet.modeling_mpnet import MPNetSelfAttention


def encode_mpnet(backbone: PreTrainedModel, tokens: dict[str, Tensor], packing: Packing) -> Tensor:
    """Returns hidden states ``[1, T + padding, hidden]`` of ``tokens``, each ``[1, T + padding]``.

    The bias of a pair is the upper left corner of the longest pair's bias. All layers share it.
    """
    hidden = backbone.embeddings(**tokens)
    bias = backbone.encoder.compute_position_bias(hidden[:, : packing.max_length])[0]  # [heads, longest, longest]
    # One view per length for all pairs and layers: its gradients are summed before they enter the full matrix
    corner = cache(lambda length: bias[:, :length, :length])
    for layer in backbone.encoder.layer:
        attn = layer.attention.attn
        q, k, v = (_split_heads(project(hidden), attn.num_attention_heads) for project in (attn.q, attn.k, attn.v))
        out = _attend(attn, q, k, v, packing, lambda q, _: corner(q.shape[-2]))
        attended = layer.attention.LayerNorm(layer.attention.dropout(attn.o(out)) + hidden)
        hidden = layer.output(layer.intermediate(attended), attended)
    return hidden


def encode_deberta(backbone: PreTrainedModel, tokens: dict[str, Tensor], packing: Packing) -> Tensor:
    """Returns hidden states ``[1, T + padding, hidden]`` of ``tokens``, each ``[1, T + padding]``.

    Disentangled attention (He et al., 2021, "DeBERTa", equation 4) adds to the product of a query and a key the
    products of each of them with a vector of their distance.
    """
    encoder = backbone.encoder
    hidden = embedded = backbone.embeddings(**tokens)
    table = encoder.get_rel_embedding()  # None without relative attention
    rows = None if table is None else _find_rows(encoder, len(table), packing.max_length)
    for index, layer in enumerate(encoder.layer):
        attn = layer.attention.self
        projections = (attn.query_proj, attn.key_proj, attn.value_proj)
        q, k, v = (_split_heads(project(hidden), attn.num_attention_heads) for project in projections)
        scale = (q.shape[-1] * (1 + len({"c2p", "p2c"} & set(attn.pos_att_type)))) ** -0.5
        bias = None if rows is None else _disentangle(attn, table, rows, scale)
        out = _attend(attn, q, k, v, packing, bias, scale)
        attended = layer.attention.output(out, hidden)
        hidden = layer.output(layer.intermediate(attended), attended)
        if index == 0 and encoder.conv is not None:
            hidden = _convolve(encoder.conv, embedded, hidden, packing)
    return hidden


def _split_heads(x: Tensor, heads: int) -> Tensor:
    """Turns ``[..., rows, heads * width]`` into ``[..., heads, rows, width]``."""
    return x.unflatten(-1, (heads, -1)).transpose(-3, -2)


def _attend(
    module: "MPNetSelfAttention | DisentangledSelfAttention",
    q: Tensor,
    k: Tensor,
    v: Tensor,
    packing: Packing,
    bias: Bias | None,
    scale: float | None = None,
) -> Tensor:
    """Attends within each pair; ``[1, heads, T + padding, width]`` each -> ``[1, T + padding, heads * width]``."""
    dropout = module.dropout.p if module.training else 0.0
    return attend_packed(module, q, k, v, None, scale, dropout, packing=packing, bias=bias)[0].flatten(2)


def _find_rows(encoder: "DebertaV2Encoder", size: int, longest: int) -> Tensor:
    """Returns indices of a table's rows, ``[2, 2 * longest]`` int64, for distances from ``1 - longest`` to ``longest``.

    The first row is for distances from query to key, the second for distances from key to query. They are on the CPU,
    so that reading their bounds does not wait for a GPU.
    """
    distances = encoder.get_rel_pos(torch.empty(longest + 1, 0))[0]  # between all tokens, in buckets
    ahead = torch.cat([distances[0, 1:longest].flip(0), distances[:, 0]])
    return torch.stack([size // 2 - ahead, size // 2 + ahead]).clamp(0, size - 1)


def _disentangle(attention: "DisentangledSelfAttention", table: Tensor, rows: Tensor, scale: float) -> Bias | None:
    """Returns the bias of one layer's attention. ``table``: ``[size, hidden]``; ``rows``: see _find_rows"""
    first, end, longest = int(rows.min()), int(rows.max()) + 1, rows.shape[1] // 2
    drop = attention.pos_dropout
    used = drop(table[first:end], first) if isinstance(drop, PairDropout) else drop(table[first:end])

    def look_up(project: nn.Module, indices: Tensor) -> Tensor:
        vectors = _split_heads(project(used) * scale, attention.num_attention_heads)
        local = (indices - first).to(used.device, non_blocking=True)
        return vectors.index_select(1, local)  # [heads, 2 * longest, width]

    keys = queries = None
    if "c2p" in attention.pos_att_type:
        keys = look_up(attention.key_proj if attention.share_att_key else attention.pos_key_proj, rows[0])
    if "p2c" in attention.pos_att_type:
        queries = look_up(attention.query_proj if attention.share_att_key else attention.pos_query_proj, rows[1])
    if keys is None and queries is None:
        return None

    def bias(q: Tensor, k: Tensor) -> Tensor:
        length = q.shape[-2]
        near = slice(longest - length, longest + length)
        key_bias = q.new_zeros(()) if keys is None else _shear(q @ keys[:, near].mT)
        return key_bias if queries is None else _shear(k @ queries[:, near].mT).mT + key_bias

    return bias


def _shear(x: Tensor) -> Tensor:
    """Returns a view of ``x [..., length, 2 * length]``: ``out[..., i, j] = x[..., i, length - 1 + j - i]``."""
    length = x.shape[-2]
    flat = x.flatten(-2)[..., length - 1 : length - 1 + length * (2 * length - 1)]
    return flat.unflatten(-1, (length, 2 * length - 1))[..., :length]


def _convolve(layer: "ConvLayer", embedded: Tensor, hidden: Tensor, packing: Packing) -> Tensor:
    """Adds DeBERTa's convolution over the embedded tokens to its first layer's output; zeros separate the pairs."""
    gap = layer.conv.padding[0]
    sequence = F.pad(packing.sequence, (0, packing.padding), value=len(packing.starts) - 1)
    slots = torch.arange(len(sequence), device=hidden.device) + gap * sequence
    row = embedded.new_zeros(1, len(slots) + gap * (len(packing.starts) - 1), embedded.shape[-1])
    out = layer.conv(row.index_copy(1, slots, embedded).mT)[..., slots].mT
    return layer.LayerNorm(hidden + ACT2FN[layer.conv_act](layer.dropout(out)))
