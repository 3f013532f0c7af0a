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

from pathlib import Path

from mmext.cli.arguments import add_shape, command_line, positive
from mmext.cli.clear_errors import one_clear_error


def parse_args(argv=None):
    parser = command_line(__doc__)
    parser.add_argument('arch', help='a VisionTransformer of timm, e.g. deit_small_patch16_224')
    parser.add_argument('--checkpoint', help='trained weights: timm, official, mmpretrain or mmext '
                        'layout; without it random weights are pruned')
    parser.add_argument('--variant', choices=['heads-kept', 'heads-pruned'], default='heads-kept')
    parser.add_argument('--ratio', type=float, default=0.3, help='share of channels that goes')
    parser.add_argument('--head-ratio', type=float, default=0.3,
                        help='share of heads that goes (heads-pruned)')
    parser.add_argument('--round-to', type=positive, help='channel counts become multiples of this')
    add_shape(parser, (224, 224), 'image of the FLOP counts')
    parser.add_argument('--out', type=Path, required=True, help='file to write, e.g. pruned.pth')
    parser.add_argument('--json', type=Path, help='default: OUT with the suffix .json')
    return parser.parse_args(argv)


def main(argv=None):
    args = parse_args(argv)
    # after parsing, so that --help and typing errors answer at once
    from mmext.cli.structured_pruning import run
    run(args)


if __name__ == '__main__':
    with one_clear_error():
        main()
