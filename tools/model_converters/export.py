"""Export a classifier, a backbone, a detector or its backbone and neck for running without mmext.

The exported model takes a float tensor `image` (B, 3, H, W) of a fixed size and any batch size,
normalized as the config's data preprocessor does it. It gives `logits` (B, classes; before the
softmax) for a classifier, else one `output_i` a feature level. Pruning is part of it as in
validation. ONNX files carry mean, std, channel order, size and class names as metadata. The file
is then loaded again and compared with the model on batches of 1, 2 and 3.

A whole detector (--detector: Faster and Mask R-CNN) takes one `image` (1, 3, H, W), RGB from 0 to
255 at the top left of the canvas, and its `extent` (h, w); it gives `boxes` (n, 4), `scores`,
`labels` and `masks` (n, 28, 28). docs/deploy.md has the script that uses it.

Examples:
    python tools/model_converters/export.py CONFIG CKPT --format onnx --out model.onnx
    python tools/model_converters/export.py CONFIG --format torch_export --shape 1024 --neck \\
        --out neck.pt2
    python tools/model_converters/export.py CONFIG CKPT --detector --shape 1024 --out detector.onnx
"""

import importlib.util
import sys

from mmext.cli.arguments import (
    add_cfg_options,
    add_keep_ratio,
    add_overwrite,
    add_shape,
    command_line,
)
from mmext.cli.clear_errors import one_clear_error

SUFFIX = {'onnx': '.onnx', 'torch_export': '.pt2'}


def parse_args(argv=None):
    parser = command_line(__doc__)
    parser.add_argument('config', help='config file of a classifier or detector')
    parser.add_argument('checkpoint', nargs='?', help='without it the weights are random')
    parser.add_argument('--format', choices=list(SUFFIX), default='onnx')
    parser.add_argument('--out', required=True, help='file to write, *.onnx or *.pt2')
    add_shape(parser)
    part = parser.add_mutually_exclusive_group()
    part.add_argument('--backbone-only', action='store_true')
    part.add_argument('--neck', action='store_true', help='backbone and neck of a detector')
    part.add_argument('--detector', action='store_true',
                      help='image in, boxes, scores, labels and masks out')
    add_keep_ratio(parser)
    parser.add_argument('--opset', type=int, default=18, help='ONNX opset, at least 17')
    parser.add_argument(
        '--tolerance', type=float, default=1e-4,
        help='largest difference from the model that passes, in units of its largest output where '
        'that exceeds 1; of a detector for scores, masks and boxes over the canvas, 1 %% of the '
        'detections may differ more')
    add_cfg_options(parser)
    add_overwrite(parser)
    args = parser.parse_args(argv)
    if args.opset < 17:
        parser.error(f'--opset {args.opset} is too old, 17 or more is needed')
    if not args.out.endswith(SUFFIX[args.format]):
        parser.error(f'--out {args.out} must end in {SUFFIX[args.format]} for '
                     f'--format {args.format}')
    missing = [name for name in ('onnx', 'onnxscript', 'onnxruntime')
               if args.format == 'onnx' and importlib.util.find_spec(name) is None]
    if missing:
        parser.error(f'--format onnx needs {", ".join(missing)}: pip install {" ".join(missing)}')
    return args


def main(argv=None) -> int:
    args = parse_args(argv)
    # after parsing, so that --help and typing errors answer at once
    from mmext.cli.export import run
    return run(args)


if __name__ == '__main__':
    with one_clear_error():
        sys.exit(main())
