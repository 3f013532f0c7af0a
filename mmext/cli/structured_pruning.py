"""Structured pruning of a timm ViT with Torch-Pruning, counted before and after."""

import json
import warnings

import timm
import torch

from mmext.analysis.flop_counter import count_flops
from mmext.checkpoints.files import read_state_dict
from mmext.checkpoints.structured import load_pruned, prune_vit, save_pruned
from mmext.checkpoints.vit import to_timm
from mmext.cli.config_check import ConfigError


def build(arch: str, checkpoint: str | None) -> torch.nn.Module:
    state = to_timm(read_state_dict(checkpoint)) if checkpoint else None
    classes = 1000 if state is None or 'head.weight' not in state else len(state['head.weight'])
    try:
        model = timm.create_model(arch, num_classes=classes)
    except RuntimeError as error:
        raise ConfigError(f'arch {arch!r}: {error}') from None
    if not isinstance(model, timm.models.VisionTransformer):
        raise ConfigError(f'arch {arch!r} is a {type(model).__name__}; only VisionTransformers, '
                         'such as deit_small_patch16_224, can be pruned here')
    if state is None:
        warnings.warn('no --checkpoint: random weights are pruned, of use for FLOPs only')
        return model
    missing, unexpected = model.load_state_dict(state, strict=False)
    missing = [name for name in missing if not name.startswith('head.')]
    if missing or unexpected:
        raise ConfigError(f'{checkpoint} does not fit {arch}: missing {missing[:4]}, '
                         f'left over {unexpected[:4]}')
    return model


def measure(model: torch.nn.Module, shape: tuple[int, int]) -> dict:
    model.set_input_size(img_size=shape)
    count = count_flops(model.eval(), torch.rand(1, 3, *shape))
    return {'gflops': count.gflops, 'params': sum(p.numel() for p in model.parameters())}


def run(args) -> None:
    """Prune, write weights and JSON, print; ``args`` of structured_pruning.py."""
    model = build(args.arch, args.checkpoint)
    args.out.parent.mkdir(parents=True, exist_ok=True)
    heads = prune_vit(model, args.variant, args.ratio, args.head_ratio, args.round_to)
    save_pruned(args.out, model, args.arch, heads)

    blocks = model.blocks
    result = {
        'arch': args.arch,
        'checkpoint': args.checkpoint,
        'variant': args.variant,
        'ratio': args.ratio,
        'head_ratio': args.head_ratio if args.variant == 'heads-pruned' else None,
        'shape': list(args.shape),
        'units': 'GFLOPs = 2 x MACs / 1e9',
        'before': measure(
            timm.create_model(args.arch, num_classes=model.head.out_features), args.shape),
        'after': measure(load_pruned(args.out), args.shape),
        'embed_dim': model.embed_dim,
        'num_heads': heads,
        'head_dim': [block.attn.head_dim for block in blocks],
        'mlp_hidden': [block.mlp.fc1.out_features for block in blocks],
    }
    (args.json or args.out.with_suffix('.json')).write_text(json.dumps(result, indent=1) + '\n')
    for name in ('before', 'after'):
        print(f"{name:<7} {result[name]['gflops']:10.3f} GFLOPs {result[name]['params']:>14,} "
              'parameters')
    print(f"embedding {result['embed_dim']}, heads {heads}, head width {result['head_dim']}, "
          f"MLP {result['mlp_hidden']}\nwritten: {args.out}")
