"""Coding rates, memberships and gates of token-statistics attention (TSSA, DMSA).

Pure functions on intermediates: v (B, H, N, P), membership and gate (B, H, N).
Source: "Interpretable and Sparse Linear Attention ..." (arXiv 2601.17042), Fig. 5, 6.
"""

from torch import Tensor, nn

from mmext.analysis.intermediates import Layer
from mmext.ops.coding_rate import exact_coding_rate, rate_reduction, variational_coding_rate

SITES = ('input', 'attention', 'block')


def tensors_at(block: nn.Module, layer: Layer, site: str) -> dict[str, Tensor]:
    """What the attention layer says of the tokens at a site of its block.

    Their v, memberships and gate are their own: the tokens go through the block's first norm and
    the layer's projections, wherever they come from.

    Args:
        block: of a ``DMST`` or ``ToST`` in eval mode.
        layer: its intermediates, of ``iterate_layers``.
        site: 'input' of the block, 'attention' (behind the attention's residual, before the MLP)
            or 'block' (behind the MLP's).

    Returns:
        the layer's dict, and ``z`` (B, N, C), the normed tokens.
    """
    tokens = layer.tensors['x_in']
    if site == 'block':
        tokens = layer.tensors['x_out']
    elif site == 'attention':
        tokens = tokens + block.gamma1 * block.attn(block.norm1(tokens), layer.hw)
    elif site != 'input':
        raise ValueError(f'site={site!r} must be one of {SITES}')
    z = block.norm1(tokens)
    return block.attn.forward_intermediates(z, layer.hw)[1] | {'z': z}


def layer_coding_rates(tensors: dict[str, Tensor], eps2: float = 0.01,
                       normalize: str | None = 'head', use_gate: bool = True
                       ) -> dict[str, Tensor]:
    """Rates of one layer in nats, one value per image; conventions of ``mmext.ops.coding_rate``.

    Args:
        use_gate: rates within the sparse subspaces U^S; False: within the full ones.

    Returns:
        ``variational`` (the papers' curve), ``exact`` (log determinant with the same memberships)
        and ``crate`` (CRATE's log determinant, no memberships), each (B,).
    """
    v, pi = tensors['v'].double(), tensors['membership'].double()
    gate = tensors.get('gate') if use_gate else None
    options = dict(gate=gate, eps2=eps2, normalize=normalize)
    return {'variational': variational_coding_rate(v, pi, **options),
            'exact': exact_coding_rate(v, pi, **options),
            'crate': exact_coding_rate(v, None, **options)}


def layer_rate_reduction(tensors: dict[str, Tensor], eps2: float = 0.01, normalize: bool = True
                         ) -> dict[str, Tensor]:
    """MCR2 of the tokens ``z`` and their memberships, one value per image, in nats.

    Returns:
        ``whole`` R(Z), ``parts`` R^c(Z, Pi) and ``reduction`` Delta R, each (B,).
    """
    return rate_reduction(tensors['z'].double(), tensors['membership'].double(), eps2,
                          normalize)._asdict()


def support_sizes(gate: Tensor) -> tuple[Tensor, Tensor]:
    """Sizes of the sparse support of a gate (B, H, N).

    Returns:
        tokens in every subspace (B, H), and subspaces open to every token (B, N).
    """
    active = gate != 0
    return active.sum(-1), active.sum(1)


def to_grid(values: Tensor, hw: tuple[int, int]) -> Tensor:
    """Per-token values (..., N) -> (..., h, w); prefix tokens are dropped."""
    return values[..., values.shape[-1] - hw[0] * hw[1]:].unflatten(-1, hw)
