"""A start for the key bias of a pruned model from a few dozen unlabeled images.

This project's own; the paper trains the bias. ``calibrate_bias`` fits it layer by layer.
"""

import warnings
from collections.abc import Mapping, Sequence

import torch
from torch import Tensor, nn

from mmext.layers.biased_attention import BiasedAttention
from mmext.layers.query_key_free import QueryKeyFreeAttention
from mmext.ops.column_selection import KeepRule, keep_rules, num_kept
from mmext.pruning import pruned_layers, set_keep_ratio

SOFTNESS = 0.1  # width of the sigmoid around the threshold, in standard deviations of the bias
LEARNING_RATE = 0.05  # of Adam, in mean sizes of a weight
NOISE = 2.0  # on the ranking, in its own units, while fitting: few images are soon learned by heart


def calibrate_bias(model: nn.Module, images: Tensor,
                   keep_ratio: float | Sequence | Mapping | None = None, spread: float = 1e-3,
                   steps: int = 120, num_queries: int = 48, batch_size: int = 8,
                   flip: bool = True, seed: int = 0) -> list[float]:
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
        keep_ratio: what to fit for, as in ``prune_attention``; None takes the model's own for
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
    check_batch(images)
    _warn_unless_normalized(model, images)
    layers, _ = check_calibrates(model, keep_ratio)
    if keep_ratio is not None:
        set_keep_ratio(model, keep_ratio, train=False)
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


def check_batch(images) -> None:
    """ValueError unless this is a batch of images."""
    if not isinstance(images, Tensor) or images.dim() != 4:
        found = tuple(images.shape) if hasattr(images, 'shape') else type(images).__name__
        raise ValueError(f'images must be one tensor (n, 3, H, W), normalized; got {found} '
                         f'({type(images).__name__})')


def check_calibrates(model: nn.Module, keep_ratio=None
                     ) -> tuple[list[BiasedAttention], list[KeepRule]]:
    """The pruned layers and their rules for validation, those of ``keep_ratio`` where given.

    ValueError unless columns are dropped by a key bias that can be fitted."""
    layers = pruned_layers(model)
    if not layers:
        raise ValueError(f'{type(model).__name__} has no bias-pruned attention: call '
                         'prune_attention first')
    if any(isinstance(layer, QueryKeyFreeAttention) or layer.key_bias is None
           for layer in layers):
        raise ValueError('layers without queries and keys, or without key bias, cannot be fitted')
    rules = (keep_rules(keep_ratio, None, len(layers)) if keep_ratio is not None
             else [layer.rule_val for layer in layers])
    if all(rule.ratio is None for rule in rules):
        raise ValueError('every column is kept: give keep_ratio, for example (0.9, 0.1)')
    return layers, rules


def _warn_unless_normalized(model: nn.Module, images: Tensor) -> None:
    low, high = (float(value) for value in images.aminmax())
    if low < 0 and max(-low, high) < 20:
        return
    config = getattr(model, 'pretrained_cfg', None) or {}
    if not any(config.get('mean', (1,))):  # a model for pixels from 0 to 1
        return
    mean = f", with mean {config['mean']} and std {config['std']}" if config.get('mean') else ''
    warnings.warn(f'images range from {low:.3g} to {high:.3g}: they look as if they were not '
                  f'normalized; give them as the model was trained{mean}', stacklevel=3)


def _fit_layer(layer, args, kwargs, num_images, spread, steps, num_queries, batch_size,
               generator) -> float:
    """Set the key bias of one layer from the arguments of its call; returns the relative error."""
    x, *args = args
    if x.dim() == 4:  # Segment Anything's layers take a grid
        kwargs = {**kwargs, 'hw': tuple(x.shape[1:3])}
        x = x.flatten(1, 2)
    count, num_tokens, _ = x.shape
    num_prefix_tokens = layer.num_prefix_tokens
    q, k, v, logit_bias = _heads(layer, x, *args, **kwargs)
    protected = num_prefix_tokens if layer.keep_prefix else 0
    kept = num_kept(layer.rule_val.ratio or 0.5, num_tokens)
    kept = max(kept if kept < num_tokens else num_tokens // 2, protected + 1)

    patches = torch.randperm(num_tokens - num_prefix_tokens, generator=generator)[:num_queries]
    queries = torch.cat([torch.arange(num_prefix_tokens), num_prefix_tokens + patches]).to(x.device)
    logits = q[:, :, queries].float() @ k.float().transpose(2, 3) * layer.scale
    if logit_bias is not None:
        logit_bias = logit_bias.float().expand(-1, -1, num_tokens, -1)
        logits = logits + logit_bias[:, :, queries]
    v = v.float()
    dense = logits.softmax(-1)

    def output(attn, pick):
        return layer.finish((attn @ v[pick]).to(x.dtype), x[pick][:, queries]).float()

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

    target_size = _size(target, num_prefix_tokens)

    def loss(weight, pick, soften=True):
        difference = output(columns(weight, pick, soften), pick) - target[pick]
        return (_size(difference, num_prefix_tokens) / target_size[pick]).mean()

    importance = torch.cat([
        _importance(q[i:i + 8], k[i:i + 8], v[i:i + 8], layer.scale,
                    logit_bias if logit_bias is None or len(logit_bias) == 1
                    else logit_bias[i:i + 8])
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


def _heads(layer, x, hw=None, valid=None, attn_mask=None, is_causal=False, log_size=None,
           **positions):
    """Heads of all columns, from the arguments of the layer's call."""
    attn_mask, _, _ = layer.check_call(x, attn_mask, is_causal, valid, log_size)
    return layer.project(x, hw=hw, attn_mask=attn_mask, **positions)


def _size(vectors: Tensor, num_prefix_tokens: int) -> Tensor:
    """(n, queries, C) -> (n): mean squared norm of the patches plus that of the prefix tokens."""
    square = vectors.square().sum(-1)
    patches = square[:, num_prefix_tokens:].mean(1)
    return patches + square[:, :num_prefix_tokens].mean(1) if num_prefix_tokens else patches


def _whitening(x: Tensor) -> tuple[Tensor, Tensor]:
    """x (n, C) -> mean (C), matrix (C, C): (x - mean) @ matrix has variances of at most 1."""
    mean = x.mean(0)
    x = x - mean
    variance, vectors = torch.linalg.eigh(x.t() @ x / len(x))
    variance = variance.clamp(min=0)
    return mean, vectors / (variance + 0.1 * variance.mean()).sqrt()


def _importance(q, k, v, scale, logit_bias) -> Tensor:
    """log of (attention a column gets on average x distance of its value from the mean output),
    (B, H, N)."""
    logits = q.float() @ k.float().transpose(2, 3) * scale
    attn = (logits if logit_bias is None else logits + logit_bias).softmax(-1)
    distance = (v - (attn @ v).mean(2, keepdim=True)).norm(dim=-1)
    return (attn.mean(2) * distance).clamp(min=1e-12).log()


def _ridge(features: Tensor, target: Tensor) -> Tensor:
    """features (n, N, C), target (n, N, H) -> weights (C, H) for the standardized target."""
    features, target = features.flatten(0, 1), target.flatten(0, 1)
    target = (target - target.mean(0)) / target.std(0).clamp(min=1e-6)
    gram = features.t() @ features / len(features)
    gram.diagonal().add_(0.01)
    return torch.linalg.solve(gram, features.t() @ target / len(features))
