"""Bring the features of a pruned model back to those of the dense one, in minutes, without labels.

This project's own; the paper trains with labels and fixes the ends of a linear schedule.
``choose_keep_ratio`` gives columns to the layers that need them; ``recover`` teaches the blocks to
give, from the kept columns, the tokens that the model gives with all of them (feature distillation;
the teacher is the model itself).

Symbols: B images, N tokens (prefix tokens first), C channels.
"""

import copy
import math
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from timm.models import beit, eva, vision_transformer, vision_transformer_sam
from torch import Tensor, nn
from tqdm import tqdm

from mmext.analysis.schedule import best_schedule
from mmext.calibration import calibrate_bias, check_batch, check_calibrates
from mmext.layers.biased_attention import BiasedAttention
from mmext.ops.column_selection import num_kept
from mmext.pruning import pruned_layers, set_keep_ratio

WARM_UP = 10  # steps over which the learning rate rises
BLOCKS_WEIGHT = 0.3  # of the mean distance over the blocks, beside that of the features
PREFIX_WEIGHT = 0.5  # of the prefix tokens, beside the patch tokens
CLIP = 1.0  # norm of the gradient
SMALLEST = 1e-3  # size below which a parameter's learning rate falls no more
RIDGE = 0.3  # penalty of a correction
PREFIX_SHARE = 0.1  # of the prefix tokens in a correction, beside the patch tokens
MOST = 64  # images for the stages that take all at once
RATIOS = [step / 20 for step in range(1, 21)]
CROP_AREA, CROP_ASPECT = (0.3, 1.0), (3 / 4, 4 / 3)


class Closeness(NamedTuple):
    """Mean cosine between the tokens of two models; ``prefix`` is None without prefix tokens."""

    patches: float
    prefix: float | None

    def __str__(self) -> str:
        prefix = '' if self.prefix is None else f', prefix tokens {self.prefix:.3f}'
        return f'patch tokens {self.patches:.3f}{prefix}'


class Recovery(NamedTuple):
    """What ``recover`` reached on the images that it kept apart, as cosine to the dense model.

    Attributes:
        before: as the model came.
        calibrated: after the first stage.
        corrected: after the second.
        after: at the end.
        curve: (steps done, closeness) ten times on the way, the end included.
        losses: of every step.
    """

    before: Closeness
    calibrated: Closeness
    corrected: Closeness
    after: Closeness
    curve: list[tuple[int, Closeness]]
    losses: list[float]

    def __str__(self) -> str:
        return (f'cosine to the dense model on images kept apart:\n  before: {self.before}\n'
                f'  calibrated: {self.calibrated}\n'
                f'  corrected: {self.corrected}\n  after: {self.after}')


def recover(model: nn.Module, images: Tensor | Sequence[Tensor],
            keep_ratio: float | Sequence | Mapping | None = None,
            size: int | tuple[int, int] = 224, steps: int = 100, batch_size: int = 8,
            lr: float = 8e-4, seed: int = 0, progress: bool = True) -> Recovery:
    """Bring the features of a pruned model back to its dense ones, without labels.

    First ``calibrate_bias``; then ``correct``, ridge regression of the output projections; then
    ``steps`` steps of Adam on the weights of the blocks, the key bias apart: random crops, mirrored
    and recolored, go through the model as it was given, with all columns, and through the pruned
    one. The loss is 1 - cosine of the tokens after the last norm and, with less weight, of those of
    every block. Embeddings, the last norm and heads stay, so that a head of the dense model fits.
    Nothing is added to the model: its ``state_dict`` keeps its names, and nothing gets slower.

    Args:
        model: has bias-pruned attention (``prune_attention``, ``BiasPrunedViT``, ``TimmViT``).
        images: (3, H, W) each, normalized as the model wants them, of any size, best whole photos
            of 300 pixels and more; or one tensor (n, 3, H, W). An eighth of them is kept apart.
        keep_ratio: as in ``calibrate_bias``.
        size: side or (H, W) in pixels of the crops: the size that the model will be used at.
        steps, batch_size: of Adam, crops a step.
        lr: of Adam, in sizes (root mean square) of the parameter; rises and falls along a cosine.
        seed: of calibration and crops.
        progress: a bar with ETA on stderr, where that is a terminal.

    Returns:
        Closeness before, between and after, on the images kept apart.

    Raises:
        ValueError: the model or the images do not fit, or a number is out of range.
    """
    size = (size, size) if isinstance(size, int) else tuple(size)
    if len(size) != 2 or min(size) < 1:
        raise ValueError(f'size={size} must be one or two positive numbers of pixels')
    check_images(images)
    for name, value in dict(steps=steps, batch_size=batch_size, lr=lr).items():
        if not value > 0:
            raise ValueError(f'{name}={value} must be positive')
    check_calibrates(model, keep_ratio)

    training = model.training
    model.eval()
    if keep_ratio is not None:
        set_keep_ratio(model, keep_ratio, train=False)
    teacher = copy.deepcopy(model).requires_grad_(False)
    set_keep_ratio(teacher, None)
    device = next(model.parameters()).device
    whole = torch.stack([center_crop(image, size) for image in images]).to(device)
    apart = max(1, len(images) // 8)
    generator = torch.Generator().manual_seed(seed)
    pruned, dense = Tokens(model), Tokens(teacher)

    @torch.no_grad()
    def measure() -> Closeness:
        found = [distances(pruned(batch)[-1:], [features], pruned.num_prefix_tokens)[0]
                 for batch, features in zip(whole[-apart:].split(1), wanted, strict=True)]
        patches, prefix = (1 - torch.stack(part).mean().item() for part in zip(*found, strict=True))
        return Closeness(patches, prefix if pruned.num_prefix_tokens else None)

    try:
        with torch.no_grad():
            wanted = [dense(image)[-1] for image in whole[-apart:].split(1)]
        before = measure()
        calibrate_bias(model, whole[:-apart][:MOST], seed=seed)
        calibrated = measure()
        seen = torch.cat(list(random_batches(images[:-apart], size, 2 * min(len(images), MOST), 1,
                                             generator)))
        correct(model, teacher, seen.to(device))
        corrected = measure()
        batches = random_batches(images[:-apart], size, batch_size, steps, generator)
        with tqdm(total=steps, desc='distilling', unit='step', leave=False,
                  disable=not (progress and sys.stderr.isatty())) as bar:
            curve, losses = [], []
            for loss in distill(pruned, dense, batches, steps, lr):
                losses.append(loss)
                bar.update()
                step = len(losses)
                if step * 10 // steps > (step - 1) * 10 // steps:
                    curve.append((step, measure()))
                    bar.set_postfix_str(str(curve[-1][1]))
        return Recovery(before, calibrated, corrected, curve[-1][1], curve, losses)
    finally:
        pruned.remove()
        model.train(training)


@torch.no_grad()
def choose_keep_ratio(model: nn.Module, images: Tensor,
                      keep_ratio: float | Sequence | Mapping | None = None) -> list[float]:
    """Share the kept columns out among the layers so that the blocks' outputs change least.

    As many columns in all as before, so as many FLOPs. Every block gets the inputs of the dense
    model and each ratio of ``RATIOS`` in turn; the sum over the blocks of the tokens' mean distance
    (that of ``recover``) is minimized exactly. Call it after ``calibrate_bias``: a bias that is
    fitted needs fewer columns. The ratios stay set, for training too, and belong into the config or
    ``prune_attention`` of whoever loads the weights: a ``state_dict`` does not hold them.

    Args:
        model: has bias-pruned attention with a fitted or trained bias.
        images: (n, 3, H, W), normalized, at the size of use; a dozen is enough.
        keep_ratio: says how many columns; None takes the model's own for validation.

    Returns:
        One ratio a layer.

    Raises:
        ValueError: as ``calibrate_bias``.
    """
    check_batch(images)
    layers, rules = check_calibrates(model, keep_ratio)
    training, prefix = model.training, layers[0].num_prefix_tokens
    counts, change = [], []

    def measure(block, args, kwargs, out):
        layer = next(module for module in block.modules() if module in layers)
        before = layer.rule_val
        wanted = [layer_norm(tokens_of(out))]
        row = []
        for ratio in RATIOS:
            layer.set_keep_ratio(ratio, train=False)
            found = layer_norm(tokens_of(block.forward(*args, **kwargs)))
            patches, prefixes = distances([found], wanted, prefix)[0]
            row.append((patches + PREFIX_WEIGHT * prefixes).item())
        layer.set_rule(before, train=False)
        counts.append(wanted[0].shape[1])
        change.append(row)

    own = [layer.rule_val for layer in layers]
    hooks = []
    try:
        set_keep_ratio(model.eval(), None, train=False)
        hooks = [block.register_forward_hook(measure, with_kwargs=True)
                 for block in blocks_of(model)]
        model(images)
    finally:
        for hook in hooks:
            hook.remove()
        for layer, rule in zip(layers, own, strict=True):
            layer.set_rule(rule, train=False)
        model.train(training)
    columns = sum(num_kept(rule.ratio or 1, count)
                  for rule, count in zip(rules, counts, strict=True))
    ratios = best_schedule(-np.array(change), RATIOS, counts[0], columns)
    set_keep_ratio(model, ratios)
    return ratios


def blocks_of(model: nn.Module) -> list[nn.Module]:
    """The modules that hold a pruned attention layer, first to last."""
    names = {module: name for name, module in model.named_modules()}
    return [model.get_submodule(names[layer].rpartition('.')[0]) for layer in pruned_layers(model)]


def tokens_of(out) -> Tensor:
    """What a block puts out -> (B, N, C) fp32; Segment Anything's give a grid (B, h, w, C)."""
    return (out[0] if isinstance(out, tuple) else out).flatten(1, -2).float()


def check_images(images) -> None:
    """ValueError unless these are at least 8 normalized images."""
    found = f'{type(images).__name__}'
    wanted = 'images must be a list of at least 8 float tensors (3, H, W), normalized, or one ' \
             'tensor of them'
    if not isinstance(images, (Tensor, list, tuple)):
        raise ValueError(f'{wanted}; got {found}')
    if len(images) < 8:
        raise ValueError(f'{wanted}; got {len(images)}')
    for i, image in enumerate(images):
        if not isinstance(image, Tensor) or image.dim() != 3 or image.shape[0] != 3 \
                or not image.is_floating_point():
            shape = f'{tuple(image.shape)}, {image.dtype}' if isinstance(image, Tensor) \
                else type(image).__name__
            raise ValueError(f'{wanted}; images[{i}] is {shape}')
        largest = image.abs().max().item()
        if not largest < 30:  # also NaN
            raise ValueError(f'images[{i}] has values up to {largest:g}: normalize the images as '
                             "the model wants them, about -3 to 3 (timm's pretrained_cfg has mean "
                             'and std)')


# ------------------------------------------------------------------------------------ regression


@torch.no_grad()
def correct(model: nn.Module, teacher: nn.Module, images: Tensor) -> list[float]:
    """Change the output projections of attention so that every block's stream is the teacher's.

    Block by block, in one pass: ridge regression, towards the weights as they are, of the
    difference of the two models' tokens after attention (what ``norm2`` gets) on the concatenated
    heads; a block also repairs what those before it left. A quarter of the images says whether a
    correction holds for others; else it is not made. Only residual pre-norm blocks, as nearly all
    of timm's are, are corrected.

    Args:
        images: (n, 3, H, W), all at once; the more different, the better.

    Returns:
        Of every block that was looked at, squared error on that quarter, after / before.
    """
    pairs = [pair for pair in zip(blocks_of(model), blocks_of(teacher), pruned_layers(model),
                                  strict=True) if fits(pair[0], pair[2])]
    wanted, heads, ratios, hooks = {}, {}, [], []
    held = torch.arange(len(images)) % 4 == 3

    def repair(norm, args, block, layer):
        stream, h, scale = args[0], heads.pop(layer), layer_scale(block)
        change = (wanted.pop(block) - tokens_of(stream)) / scale
        prefix = layer.num_prefix_tokens
        weight = torch.ones(change.shape[1], device=change.device)
        weight[:prefix] = PREFIX_SHARE * (len(weight) - prefix) / max(prefix, 1)
        slope, shift = ridge(h[~held], change[~held], weight)
        repaired = scale * (h @ slope + shift)
        before, after = (part[held].square().mean().item() for part in (
            scale * change, scale * change - repaired))
        ratios.append(after / before if before else 1.)
        if ratios[-1] < 1:
            layer.proj.weight.add_(slope.t())
            layer.proj.bias.add_(shift)
            stream.add_(repaired.view_as(stream))  # in place: the residual branch sees it, too

    for block, teacher_block, layer in pairs:
        hooks += [
            teacher_block.norm2.register_forward_pre_hook(
                lambda norm, args, block=block: wanted.update({block: tokens_of(args[0]).clone()})),
            layer.proj.register_forward_pre_hook(
                lambda proj, args, layer=layer: heads.update({layer: tokens_of(args[0])})),
            block.norm2.register_forward_pre_hook(partial(repair, block=block, layer=layer))]
    try:
        if pairs:
            teacher(images)
            model(images)
    finally:
        for hook in hooks:
            hook.remove()
    return ratios


def fits(block: nn.Module, layer: BiasedAttention) -> bool:
    """Whether norm2 gets the stream after attention: not in post-norm or parallel blocks."""
    return isinstance(block, (vision_transformer.Block, beit.Block, eva.EvaBlock,
                              vision_transformer_sam.Block)) and layer.proj.bias is not None


def layer_scale(block: nn.Module) -> Tensor | float:
    """(C), what the block multiplies the attention's output with."""
    scale = getattr(getattr(block, 'ls1', None), 'gamma', getattr(block, 'gamma_1', None))
    return 1. if scale is None else scale


def ridge(h: Tensor, change: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
    """Slope S (C, D) and shift s (D) of the least weighted squares of change - h S - s.

    Penalized is |S|^2 times ``RIDGE`` times the mean square of an entry of h.

    Args:
        h: (n, N, C).
        change: (n, N, D).
        weight: (N), of a token.
    """
    weight = weight.double().expand(len(h), -1).flatten()[:, None]
    weight = weight / weight.sum()
    h, change = h.flatten(0, 1).double(), change.flatten(0, 1).double()
    mean_h, mean_change = (weight * h).sum(0), (weight * change).sum(0)
    strength = RIDGE * (weight * h.square()).sum(0).mean()
    h = h - mean_h
    gram = h.t() @ (weight * h)
    gram.diagonal().add_(strength)
    slope = torch.linalg.solve(gram, h.t() @ (weight * (change - mean_change)))
    return slope.float(), (mean_change - mean_h @ slope).float()


# ------------------------------------------------------------------------------------ distillation


class Tokens:
    """Runs a model and gives the tokens of its blocks and its features.

    Features are the last block's tokens through the ``norm`` that stands beside the blocks.

    Attributes:
        blocks: first to last.
        num_prefix_tokens: in front of the patch tokens.
    """

    def __init__(self, model: nn.Module):
        self.model = model
        self.blocks = blocks_of(model)
        self.num_prefix_tokens = pruned_layers(model)[0].num_prefix_tokens
        name = next(name for name, module in model.named_modules() if module is self.blocks[-1])
        norm = getattr(model.get_submodule('.'.join(name.split('.')[:-2])), 'norm', None)
        self.norm = norm if isinstance(norm, nn.LayerNorm) else layer_norm
        self.found = {}
        self.hooks = [block.register_forward_hook(self.keep) for block in self.blocks]

    def keep(self, block, args, out) -> None:
        self.found[block] = tokens_of(out)

    def remove(self) -> None:
        for hook in self.hooks:
            hook.remove()

    def __call__(self, images: Tensor) -> list[Tensor]:
        """(B, 3, H, W) -> layer-normed tokens (B, N, C) of every block, then the features."""
        self.model(images)
        tokens = [self.found.pop(block) for block in self.blocks]
        return [*map(layer_norm, tokens), self.norm(tokens[-1])]


def layer_norm(x: Tensor) -> Tensor:
    return F.layer_norm(x, x.shape[-1:])


def distances(found: Sequence[Tensor], wanted: Sequence[Tensor], num_prefix_tokens: int
              ) -> list[tuple[Tensor, Tensor]]:
    """Two lists of (B, N, C) -> for each pair, mean 1 - cosine of the patch and prefix tokens."""
    out = []
    for one, other in zip(found, wanted, strict=True):
        distance = 1 - F.cosine_similarity(one, other, dim=-1)
        prefix, patches = distance.tensor_split([num_prefix_tokens], 1)
        out.append((patches.mean(), prefix.mean() if num_prefix_tokens else distance.new_zeros(())))
    return out


def distill(pruned: Tokens, dense: Tokens, batches: Iterable[Tensor], steps: int, lr: float
            ) -> Iterator[float]:
    """Train the blocks of ``pruned``, key bias apart, towards ``dense``; gives every loss."""
    bias = {id(layer.key_bias.weight) for layer in pruned_layers(pruned.model)}
    weights = [parameter for block in pruned.blocks for parameter in block.parameters()
               if id(parameter) not in bias]
    needed = [(parameter, parameter.requires_grad) for parameter in pruned.model.parameters()]
    for parameter, _ in needed:
        parameter.requires_grad_(False)
    for weight in weights:
        weight.requires_grad_(True)
    # Layers of one model differ in size by orders of magnitude (a folded layer scale): a step is a
    # share of the parameter's own.
    optimizer = torch.optim.Adam(
        [dict(params=[weight], size=max(weight.detach().square().mean().sqrt().item(), SMALLEST))
         for weight in weights], lr=0., betas=(0.9, 0.99))
    device = weights[0].device
    try:
        for step, batch in enumerate(batches):
            rate = lr * min(1, (step + 1) / WARM_UP) * (1 + math.cos(math.pi * step / steps)) / 2
            for group in optimizer.param_groups:
                group['lr'] = rate * group['size']
            batch = batch.to(device)
            with torch.enable_grad(), fast_autocast(device.type):
                with torch.no_grad():
                    wanted = dense(batch)
                *blocks, features = (
                    patches + PREFIX_WEIGHT * prefix for patches, prefix in distances(
                        pruned(batch), wanted, pruned.num_prefix_tokens))
                loss = features + BLOCKS_WEIGHT * torch.stack(blocks).mean()
            optimizer.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(weights, CLIP)
            optimizer.step()
            if not math.isfinite(loss.item()):
                raise ValueError(f'the loss is {loss.item()} at step {step + 1}: take a smaller lr '
                                 f'than {lr:g}')
            yield loss.item()
    finally:
        optimizer.zero_grad()
        for parameter, wish in needed:
            parameter.requires_grad_(wish)


def fast_autocast(device_type: str):
    """bf16 where the processor has it: 1.65 times as fast a step of a ViT-S on two AMD cores, and
    the features' cosine to fp32 is 1.000."""
    fast = torch.cuda.is_bf16_supported() if device_type == 'cuda' else (
        device_type == 'cpu' and getattr(torch.cpu, '_is_avx512_bf16_supported', lambda: False)())
    return torch.autocast(device_type, torch.bfloat16, enabled=fast)


# ------------------------------------------------------------------------------------ images


def center_crop(image: Tensor, size: tuple[int, int]) -> Tensor:
    """(3, H, W) -> the largest part of the wanted shape in its middle, (3, *size)."""
    height, width = image.shape[-2:]
    scale = min(height / size[0], width / size[1])
    high, wide = round(size[0] * scale), round(size[1] * scale)
    return cut(image, (height - high) // 2, (width - wide) // 2, high, wide, size)


def cut(image: Tensor, top: int, left: int, height: int, width: int,
        size: tuple[int, int]) -> Tensor:
    part = image[None, :, top:top + height, left:left + width]
    if part.shape[-2:] == size:
        return part[0]
    return F.interpolate(part, size, mode='bicubic', antialias=True, align_corners=False)[0]


def random_crop(image: Tensor, size: tuple[int, int], generator: torch.Generator) -> Tensor:
    """(3, H, W) -> (3, *size): a part of random area and shape, mirrored and recolored at random.

    Colors change far (saturation, contrast, brightness, tint): features have to hold for other
    kinds of images than the few given ones.
    """
    def between(low: float, high: float) -> float:
        return low + (high - low) * torch.rand((), generator=generator).item()

    height, width = image.shape[-2:]
    area = height * width * between(*CROP_AREA)
    aspect = size[1] / size[0] * math.exp(between(*map(math.log, CROP_ASPECT)))
    high, wide = (min(side, max(1, round(wish))) for side, wish in (
        (height, math.sqrt(area / aspect)), (width, math.sqrt(area * aspect))))
    top, left = round(between(0, height - high)), round(between(0, width - wide))
    out = cut(image, top, left, high, wide, size)
    if between(0, 1) < 0.5:
        out = out.flip(-1)
    if between(0, 1) < 0.8:
        gray = out.mean(0, keepdim=True)
        out = gray + (out - gray) * between(0, 2)
        mean = out.mean((1, 2), keepdim=True)
        out = mean + (out - mean) * between(0.5, 1.5) + between(-0.5, 0.5)
        tint = torch.rand(3, 1, 1, generator=generator) - 0.5
        out = out + 0.4 * tint.to(out)
    return out


def random_batches(images: Sequence[Tensor], size: tuple[int, int], batch_size: int, steps: int,
                   generator: torch.Generator) -> Iterator[Tensor]:
    """(batch_size, 3, *size) of random crops, every image once before any a second time."""
    order = []
    for _ in range(steps):
        while len(order) < batch_size:
            order += torch.randperm(len(images), generator=generator).tolist()
        chosen, order = order[:batch_size], order[batch_size:]
        yield torch.stack([random_crop(images[i], size, generator) for i in chosen])
