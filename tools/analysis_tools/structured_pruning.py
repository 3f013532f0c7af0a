"""Structured pruning of DeiT with Torch-Pruning, as a baseline (pip install torch-pruning).

Writes OUT (weights and shapes, to be read with mmext.checkpoints.structured.load_pruned or
the backbone mmext.StructuredPrunedViT) and OUT with the suffix .json: FLOPs and parameters before
and after. Fine-tune the result like the bias-pruned models.

Examples:
    python tools/analysis_tools/structured_pruning.py deit_small_patch16_224 \\
        --checkpoint deit_small_patch16_224-cd65a155.pth --out deit-s-heads-kept.pth
    python tools/analysis_tools/structured_pruning.py deit_small_patch16_224 \\
        --checkpoint FILE --variant heads-pruned --ratio 0.3 --head-ratio 0.3 --out OUT.pth
"""

import argparse
import json
import warnings
from pathlib import Path

import timm
import torch

from mmext.analysis.flop_counter import count_flops
from mmext.checkpoints.files import read_state_dict
from mmext.checkpoints.fit import require
from mmext.checkpoints.structured import VARIANTS, load_pruned, prune_vit, save_pruned
from mmext.checkpoints.vit import to_timm
from mmext.cli.launch import one_clear_error
from mmext.cli.outputs import add_overwrite, check_outputs


def parse_args(argv=None):
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument('arch', help='a VisionTransformer of timm, e.g. deit_small_patch16_224')
    parser.add_argument('--checkpoint', help='trained weights: timm, official, mmpretrain or mmext '
                        'layout; without it random weights are pruned')
    parser.add_argument('--variant', choices=VARIANTS, default='heads-kept')
    parser.add_argument('--ratio', type=float, default=0.3, help='share of channels that goes')
    parser.add_argument('--head-ratio', type=float, default=0.3,
                        help='share of heads that goes (heads-pruned)')
    parser.add_argument('--round-to', type=int, help='channel counts become multiples of this')
    parser.add_argument('--shape', type=int, nargs='+', default=[224], metavar='H [W]',
                        help='input size of the FLOP counts')
    parser.add_argument('--out', type=Path, required=True, help='file to write, e.g. pruned.pth')
    parser.add_argument('--json', type=Path, help='default: OUT with the suffix .json')
    add_overwrite(parser)
    return parser.parse_args(argv)


def build(arch: str, checkpoint: str | None) -> torch.nn.Module:
    state = to_timm(read_state_dict(checkpoint)) if checkpoint else None
    classes = 1000 if state is None or 'head.weight' not in state else len(state['head.weight'])
    try:
        model = timm.create_model(arch, num_classes=classes)
    except RuntimeError as error:
        raise SystemExit(f'arch {arch!r}: {error}') from None
    if not isinstance(model, timm.models.VisionTransformer):
        raise SystemExit(f'arch {arch!r} is a {type(model).__name__}; only VisionTransformers, '
                         'such as deit_small_patch16_224, can be pruned here')
    if state is None:
        warnings.warn('no --checkpoint: random weights are pruned, of use for FLOPs only')
        return model
    require(model, state, checkpoint, lambda name: 'head.weight' not in state
            and name.startswith('head.'))
    return model


def measure(model: torch.nn.Module, shape: tuple[int, int]) -> dict:
    model.set_input_size(img_size=shape)
    count = count_flops(model.eval(), torch.rand(1, 3, *shape))
    return {'gflops': count.gflops, 'params': sum(p.numel() for p in model.parameters())}


def main(argv=None):
    args = parse_args(argv)
    shape = tuple(args.shape * 2)[:2]
    numbers = args.json or args.out.with_suffix('.json')
    check_outputs([args.out, numbers], args.overwrite, [args.checkpoint])
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
        'shape': list(shape),
        'units': 'GFLOPs = 2 x MACs / 1e9',
        'before': measure(timm.create_model(args.arch, num_classes=model.head.out_features), shape),
        'after': measure(load_pruned(args.out), shape),
        'embed_dim': model.embed_dim,
        'num_heads': heads,
        'head_dim': [block.attn.head_dim for block in blocks],
        'mlp_hidden': [block.mlp.fc1.out_features for block in blocks],
    }
    numbers.write_text(json.dumps(result, indent=1) + '\n')
    for name in ('before', 'after'):
        print(f"{name:<7} {result[name]['gflops']:10.3f} GFLOPs {result[name]['params']:>14,} "
              'parameters')
    print(f"embedding {result['embed_dim']}, heads {heads}, head width {result['head_dim']}, "
          f"MLP {result['mlp_hidden']}\nwritten: {args.out}")


if __name__ == '__main__':
    with one_clear_error():
        main()
