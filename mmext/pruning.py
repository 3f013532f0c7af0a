"""Bias-pruned attention for timm's vision transformers as they are, and a start for its bias.

Source of the pruning: "Exploiting Biases in Attention for Transformers" (2026). ``calibrate_bias``
is this project's own.
"""

import functools
from collections.abc import Sequence

import torch
from torch import Tensor, nn

from mmext.layers.biased_attention import BiasedAttention
from mmext.layers.timm_attention import TIMM_ATTENTION, PrunedAttention, adopt, release
from mmext.ops.column_selection import keep_ratio_schedule, num_kept

# A new bias ranks columns at random, but is too small to change what attention computes; it also
# survives fp16, whose smallest step is 6e-8.
STD = 1e-6
SOFTNESS = 0.1  # width of the sigmoid around the threshold, in standard deviations of the bias
LEARNING_RATE = 0.05  # of Adam, in mean sizes of a weight
NOISE = 2.0  # on the ranking, in its own units, while fitting: few images are soon learned by heart


class Pruning:
    """What ``prune_attention`` did to a model.

    Attributes:
        model: the model, changed in place.
        layers: its bias-pruned attention modules, first to last.
    """

    def __init__(self, model: nn.Module, layers: list[BiasedAttention]):
        self.model = model
        self.layers = layers

    def set_keep_ratio(self, value: float | Sequence | None, train: bool = True,
                       val: bool = True) -> None:
        """See ``mmext.pruning.set_keep_ratio``."""
        set_keep_ratio(self.model, value, train, val)

    def undo(self) -> nn.Module:
        """Give the model its own attention back; the key bias is gone. Returns the model."""
        for layer in self.layers:
            release(layer)
        vars(self.model).pop('set_keep_ratio', None)
        self.layers = []
        return self.model


def prune_attention(model: nn.Module, keep: float | Sequence | None = (0.9, 0.1),
                    keep_prefix: bool = True, train_mode: str = 'mask', val_mode: str = 'gather',
                    gather: str = 'auto') -> Pruning:
    """Turn a ViT of timm's family into a bias-pruned one, in place and with its weights.

    Works for every model built of timm's ``Attention`` (ViT, DeiT, MAE, DINO, CLIP and SigLIP
    towers, with registers, distillation token, ``qk_norm``, layer scale), its rotary relatives
    (EVA, DINOv3) and BEiT. New is one parameter a layer, ``...attn.key_bias.weight`` (H, C); it
    starts with values too small to change anything but the (random) ranking of the columns:
    train it, or give it a start with ``calibrate_bias``.

    Args:
        model: the model or a module that contains one, such as a classifier around a backbone.
        keep: what is kept: None (all columns), a number, (r0, r1) for the linear schedule over
            depth, or one entry a layer. Changed later by ``model.set_keep_ratio``.
        keep_prefix: class token, distillation token and registers are always kept, within k.
        train_mode, val_mode, gather: see ``mmext.layers.BiasedAttention``.

    Returns:
        A handle with ``layers``, ``set_keep_ratio`` and ``undo``.

    Raises:
        ValueError: the model has no such attention, is pruned already, or ``keep`` is wrong; the
            model is then unchanged.
    """
    if any(isinstance(module, BiasedAttention) for module in model.modules()):
        raise ValueError(f'{type(model).__name__} has bias-pruned attention already: change it '
                         'with set_keep_ratio')
    found = [module for module in model.modules() if type(module) in TIMM_ATTENTION]
    if not found:
        others = sorted({type(module).__name__ for module in model.modules()
                         if 'attention' in type(module).__name__.lower()
                         or 'attn' in type(module).__name__.lower()
                         or type(module).__name__ == 'XCA'})
        raise ValueError(
            f'{type(model).__name__} has no attention that can be pruned (it has '
            f'{", ".join(others) or "no attention at all"}); supported are '
            + ', '.join(f'{cls.__module__}.{cls.__name__}' for cls in TIMM_ATTENTION))
    keep_ratio_schedule(keep, len(found), 'keep')
    BiasedAttention(1, 1, train_mode=train_mode, val_mode=val_mode, gather=gather)  # checks options
    num_prefix = _num_prefix_tokens(model)
    options = dict(train_mode=train_mode, val_mode=val_mode, gather=gather, keep_cls=keep_prefix)
    layers = [adopt(module, num_prefix, STD, **options) for module in found]
    set_keep_ratio(model, keep)
    if not hasattr(model, 'set_keep_ratio'):
        # a partial, unlike a method, follows deepcopy and pickle
        model.set_keep_ratio = functools.partial(set_keep_ratio, model)
    return Pruning(model, layers)


def _num_prefix_tokens(model: nn.Module) -> int:
    """Of the first module, outside in, that says so; attention modules know of rotary ones only."""
    for module in model.modules():
        if hasattr(module, 'num_prefix_tokens') and type(module) not in TIMM_ATTENTION:
            return module.num_prefix_tokens
        if hasattr(module, 'cls_token') and hasattr(module, 'pos_embed'):
            return int(module.cls_token is not None)
    return 0


def pruned_layers(model: nn.Module) -> list[BiasedAttention]:
    """The bias-pruned attention modules of a model, first to last."""
    return [module for module in model.modules() if isinstance(module, BiasedAttention)]


def set_keep_ratio(model: nn.Module, value: float | Sequence | None, train: bool = True,
                   val: bool = True) -> None:
    """Change what a pruned model keeps.

    Args:
        value: None (dense), a number, (r0, r1) for the linear schedule over depth, or one entry a
            layer.
        train, val: for which of the two modes.
    """
    layers = pruned_layers(model)
    for layer, ratio in zip(layers, keep_ratio_schedule(value, len(layers)), strict=True):
        layer.set_keep_ratio(ratio, train, val)


# ------------------------------------------------------------------ a start for the bias
def calibrate_bias(model: nn.Module, images: Tensor, keep: float | Sequence | None = None,
                   spread: float = 1e-3, steps: int = 120, num_queries: int = 48,
                   batch_size: int = 8, flip: bool = True, seed: int = 0) -> list[float]:
    """Give the key bias of a pruned model a start from a few dozen unlabeled images.

    Trains the key bias alone, layer by layer in the order of depth, so that what a layer puts out
    with its kept columns comes near to what it puts out with all of them. All images go through
    the model once; each layer is fitted, in eval mode, on the input that the pruned layers
    before it give. No layer's other weights change.

    A layer's fit: ridge regression on the logarithm of a column's mean attention times the
    distance of its value from the mean output; then ``steps`` steps of Adam on the relative
    squared error of the layer's output, half of it that of the prefix tokens. The selection stays
    hard in the forward pass; backward sees a sigmoid around the threshold (straight-through), the
    ranking is noisy. A quarter of the images is held out: without a clear gain there, the
    regression stays. Few images are soon learned by heart, in the last layers most of all.

    Only the order of the biases chooses the columns; their size changes the attention itself, in
    favor of outliers. Hence a small ``spread``. A training that follows moves every weight by
    about the learning rate a step (Adam): where the order shall survive the first steps, take a
    spread of 0.1 to 0.5, at the price of a worse start.

    Args:
        model: has bias-pruned attention (``prune_attention``, ``BiasPrunedViT``).
        images: (n, 3, H, W), normalized as the model wants them; some 30 to 60 at 224 pixels.
        keep: keep ratio to fit for, as in ``prune_attention``; None takes the model's own for
            validation. It stays set afterwards. A layer that keeps all is fitted for one half.
        spread: standard deviation of the bias over tokens, in logits.
        steps, batch_size: of Adam, images a step.
        num_queries: patch tokens per image whose output is compared.
        flip: fit on the mirrored images as well.
        seed: of the choice of images and queries, and of the noise.

    Returns:
        Each layer's relative error: squared norm of the output's change / that of the output.

    Raises:
        ValueError: nothing is pruned in this model, its attention is query-key-free, or the images
            are no batch.
    """
    if not isinstance(images, Tensor) or images.dim() != 4:
        found = tuple(images.shape) if hasattr(images, 'shape') else type(images).__name__
        raise ValueError(f'images must be one tensor (n, 3, H, W), normalized; got {found} '
                         f'({type(images).__name__})')
    layers = pruned_layers(model)
    if not layers:
        raise ValueError(f'{type(model).__name__} has no bias-pruned attention: call '
                         'prune_attention first')
    if any(layer.query_key_free or layer.key_bias is None for layer in layers):
        raise ValueError('layers without queries and keys, or without key bias, cannot be fitted')
    if keep is not None:
        set_keep_ratio(model, keep, train=False)
    if all(layer.rule_val.ratio is None for layer in layers):
        raise ValueError('every column is kept: give keep, for example keep=(0.9, 0.1)')
    generator = torch.Generator().manual_seed(seed)
    errors = []

    def fit(layer, args, kwargs):
        error = _fit_layer(layer, args, kwargs, len(images), spread, steps, num_queries, batch_size,
                           generator)
        errors.append(error)

    training = model.training
    hooks = [layer.register_forward_pre_hook(fit, with_kwargs=True) for layer in layers]
    try:
        with torch.no_grad():
            model.eval()(torch.cat([images, images.flip(-1)]) if flip else images)
    finally:
        for hook in hooks:
            hook.remove()
        model.train(training)
    return errors


def _fit_layer(layer, args, kwargs, num_images, spread, steps, num_queries, batch_size,
               generator) -> float:
    """Set the key bias of one layer from the arguments of its call; returns the relative error."""
    x = args[0]
    count, num_tokens, _ = x.shape
    q, k, v, mask, num_prefix = _project(layer, *args, **kwargs)
    protected = num_prefix if layer.keep_cls else 0
    kept = num_kept(layer.rule_val.ratio or 0.5, num_tokens)
    kept = max(kept if kept < num_tokens else num_tokens // 2, protected + 1)

    patches = torch.randperm(num_tokens - num_prefix, generator=generator)[:num_queries]
    queries = torch.cat([torch.arange(num_prefix), num_prefix + patches]).to(x.device)
    logits = q[:, :, queries].float() @ k.float().transpose(2, 3) * layer.scale
    if mask is not None:
        logits = logits + mask.float().expand(-1, -1, num_tokens, -1)[:, :, queries]
    v = v.float()
    dense = logits.softmax(-1)
    finish = getattr(layer, '_finish', None) or (lambda out, _: layer.proj(out))

    def output(attn, pick):
        out = (attn @ v[pick]).transpose(1, 2).flatten(2)
        return finish(out.to(x.dtype), x[pick][:, queries]).float()

    target = output(dense, slice(None))
    mean, whiten = _whitening(x.float().flatten(0, 1))
    features = (x.float() - mean) @ whiten

    def columns(weight, pick, soften):
        """Attention weights over the kept columns, (images, H, queries, N)."""
        rank = features[pick] @ weight
        rank = ((rank - rank.mean((0, 1))) / rank.std((0, 1))).transpose(1, 2)
        if soften:
            rank = rank + NOISE * torch.randn(rank.shape, generator=generator).to(rank)
        order = torch.cat([torch.full_like(rank[..., :protected], 1e4), rank[..., protected:]], -1)
        top = order.topk(kept + 1, -1)[0]
        border = top[..., -2:].mean(-1, keepdim=True).detach()
        chosen = (order > border).float()
        if soften:
            soft = ((order - border) / SOFTNESS).sigmoid()
            chosen = chosen + soft - soft.detach()
        attn = dense[pick] * (chosen * (spread * rank).exp())[:, :, None]
        return attn / attn.sum(-1, keepdim=True)

    target_size = _size(target, num_prefix)

    def loss(weight, pick, soften=True):
        difference = output(columns(weight, pick, soften), pick) - target[pick]
        return (_size(difference, num_prefix) / target_size[pick]).mean()

    importance = torch.cat([
        _importance(q[i:i + 8], k[i:i + 8], v[i:i + 8], layer.scale,
                    mask if mask is None or len(mask) == 1 else mask[i:i + 8])
        for i in range(0, count, 8)])
    start = _ridge(features, importance.transpose(1, 2))
    # a quarter of the images, with their mirrors, says how far to go from the start
    held_out = torch.arange(count) % num_images >= num_images - num_images // 4
    fitted, held_out = (~held_out).nonzero().flatten(), held_out.nonzero().flatten()
    with torch.enable_grad():
        weight = start.clone().requires_grad_()
        rate = LEARNING_RATE * weight.detach().abs().mean().item()
        optimizer = torch.optim.Adam([weight], lr=rate)
        step_sum = torch.zeros_like(start)
        for step in range(steps):
            optimizer.param_groups[0]['lr'] = rate * (1 - step / steps)
            pick = fitted[torch.randperm(len(fitted), generator=generator)[:batch_size]]
            weight.grad, = torch.autograd.grad(loss(weight, pick.to(x.device)), weight)
            optimizer.step()
            if step >= steps // 2:
                step_sum += weight.detach() - start
    change = step_sum / max(steps - steps // 2, 1)
    judges = (held_out if len(held_out) else fitted).to(x.device)
    weight, least = start, 0.95 * loss(start, judges, soften=False)  # a clear gain, or the start
    for candidate in (start + change / 2, start + change):
        found = loss(candidate, judges, soften=False)
        if found < least:
            weight, least = candidate, found
    error = loss(weight, slice(None), soften=False)
    weight = whiten @ weight
    weight = weight / (x.float() @ weight).std((0, 1)) * spread
    layer.key_bias.weight.copy_(weight.t())
    return error.item()


def _size(vectors: Tensor, num_prefix: int) -> Tensor:
    """(n, queries, C) -> (n): mean squared norm of the patches plus that of the prefix tokens."""
    square = vectors.square().sum(-1)
    patches = square[:, num_prefix:].mean(1)
    return patches + square[:, :num_prefix].mean(1) if num_prefix else patches


def _project(layer: BiasedAttention, x: Tensor, *args, **kwargs):
    """q, k, v (B, H, N, D), what is added to the logits, number of prefix tokens."""
    if isinstance(layer, PrunedAttention):
        return *layer.project(x, *args, **kwargs), layer.num_prefix
    hw = args[0] if args else kwargs.get('hw')
    batch, num_tokens, _ = x.shape
    qkv = layer.qkv(x).view(batch, num_tokens, 3, layer.num_heads, layer.head_dim)
    q, k, v = qkv.permute(2, 0, 3, 1, 4).unbind(0)
    q, k = layer.q_norm(q), layer.k_norm(k)
    mask = None if layer.rel_pos_h is None else layer._relative_logits(q, hw, None)
    return q, k, v, mask, 0 if hw is None else num_tokens - hw[0] * hw[1]


def _whitening(x: Tensor) -> tuple[Tensor, Tensor]:
    """x (n, C) -> mean (C), matrix (C, C): (x - mean) @ matrix has variances of at most 1."""
    mean = x.mean(0)
    x = x - mean
    variance, vectors = torch.linalg.eigh(x.t() @ x / len(x))
    variance = variance.clamp(min=0)
    return mean, vectors / (variance + 0.1 * variance.mean()).sqrt()


def _importance(q, k, v, scale, mask) -> Tensor:
    """log of (attention a column gets on average x distance of its value from the mean output),
    (B, H, N)."""
    logits = q.float() @ k.float().transpose(2, 3) * scale
    attn = (logits if mask is None else logits + mask.float()).softmax(-1)
    distance = (v - (attn @ v).mean(2, keepdim=True)).norm(dim=-1)
    return (attn.mean(2) * distance).clamp(min=1e-12).log()


def _ridge(features: Tensor, target: Tensor) -> Tensor:
    """features (n, N, C), target (n, N, H) -> weights (C, H) for the standardized target."""
    features, target = features.flatten(0, 1), target.flatten(0, 1)
    target = (target - target.mean(0)) / target.std(0).clamp(min=1e-6)
    gram = features.t() @ features / len(features)
    gram.diagonal().add_(0.01)
    return torch.linalg.solve(gram, features.t() @ target / len(features))
