"""A full-size exported detector against mmdet's predict, and dense against pruned in onnxruntime.

Weights are random, with the class scores spread so that there are detections; an image of COCO's
format is resized into the canvas as the test pipeline does. Prints JSON.

    python tools/dev/exported_detector.py IMAGE [IMAGE ...] --json OUT
"""

import json
import os
import tempfile
from pathlib import Path

from mmext.cli.arguments import add_overwrite, command_line, positive
from mmext.cli.clear_errors import one_clear_error

FOLDER = Path(__file__).resolve().parents[2] / 'configs' / 'vitdet'
CONFIGS = {'dense': 'mask-rcnn_deit-s_sfp_lsj-100e_coco.py',
           'pruned': 'mask-rcnn_deit-s-bias-0.9-0.1_sfp_lsj-100e_coco.py'}


def parse_args(argv=None):
    parser = command_line(__doc__)
    parser.add_argument('images', type=Path, nargs='+')
    parser.add_argument('--size', type=positive, default=1024, help='side of the canvas (1024)')
    parser.add_argument('--repeat', type=positive, default=5, help='timed runs of each file')
    parser.add_argument('--threads', type=positive, default=os.cpu_count())
    parser.add_argument('--json', type=Path, metavar='OUT')
    add_overwrite(parser)
    return parser.parse_args(argv)


def build(name: str, size: int):
    """The detector of a config with random weights whose scores differ from box to box."""
    import torch

    from mmext.cli.launch import build_model, load_config
    cfg = load_config(str(FOLDER / CONFIGS[name]), {
        'model.backbone.init_cfg': None, 'model.backbone.img_size': size,
        'model.data_preprocessor.pad_size_divisor': size}, None, 'none')
    torch.manual_seed(0)
    model = build_model(cfg).eval().requires_grad_(False)
    with torch.no_grad():
        # not more: objectness of exactly 1.0 makes ties, which every library orders in its own way
        model.rpn_head.rpn_cls.weight.mul_(3)
        model.roi_head.bbox_head.fc_cls.weight.mul_(30)
    return model


def canvas_of(path: Path, size: int):
    """RGB (1, 3, size, size) with the resized image at the top left, its extent (h, w)."""
    import mmcv
    import torch
    image = mmcv.imrescale(mmcv.imread(path), (size, size))
    canvas = torch.zeros(1, 3, size, size)
    canvas[0, :, :image.shape[0], :image.shape[1]] = torch.from_numpy(
        image[..., ::-1].copy()).permute(2, 0, 1)
    return canvas, image.shape[:2]


def agreement(model, found, canvas, extent) -> dict:
    """How many of mmdet's detections the file found, too (label, IoU above .9), and their largest
    differences."""
    import torch
    from mmdet.structures import DetDataSample
    from torchvision.ops import box_iou
    sample = DetDataSample(metainfo=dict(
        img_shape=extent, ori_shape=extent, scale_factor=(1., 1.), pad_shape=extent))
    image = canvas[0, :, :extent[0], :extent[1]].flip(0).to(torch.uint8)
    want = model.test_step(dict(inputs=[image], data_samples=[sample]))[0].pred_instances
    boxes, scores, labels, _ = found
    overlap = box_iou(want.bboxes, boxes) * (want.labels[:, None] == labels)
    best, index = overlap.max(1)
    both = best > .9
    return {'mmdet': len(want), 'file': len(scores), 'both': int(both.sum()),
            'scores': (scores[index] - want.scores)[both].abs().max().item(),
            'boxes_px': (boxes[index] - want.bboxes)[both].abs().max().item()}


def main(argv=None) -> int:
    args = parse_args(argv)
    # after parsing, so that --help and typing errors answer at once
    from mmext.cli.outputs import check_outputs
    check_outputs([args.json], args.overwrite, args.images)
    for path in args.images:
        if not path.is_file():
            raise SystemExit(f'error: {path} does not exist')
    import torch

    from mmext.analysis.timing import environment, time_alternating
    from mmext.cli.export import Exportable, runner, set_gather, write
    from mmext.models.detection.exportable import ExportableDetector
    torch.set_num_threads(args.threads)
    result = {'size': args.size, 'agreement': {}, 'milliseconds': {}}
    with tempfile.TemporaryDirectory() as folder:
        files = {}
        for name in CONFIGS:
            model = build(name, args.size)
            for part, module in (('detector', ExportableDetector(model)),
                                 ('backbone', Exportable(model, 'backbone'))):
                set_gather(model.backbone, one_image=part == 'detector')
                file = str(Path(folder) / f'{name}_{part}.onnx')
                write(module.eval(), (args.size, args.size), 'onnx', file)
                files[part, name] = runner('onnx', file)
            rows = []
            for path in args.images:
                canvas, extent = canvas_of(path, args.size)
                found = files['detector', name](canvas, torch.tensor(extent))
                with torch.inference_mode():
                    rows.append({'image': path.name, **agreement(model, found, canvas, extent)})
                print(name, rows[-1], flush=True)
            result['agreement'][name] = rows
        canvas, extent = canvas_of(args.images[0], args.size)
        inputs = {'detector': (canvas, torch.tensor(extent)), 'backbone': (canvas / 255,)}
        for part in inputs:
            timings = time_alternating(
                {name: (lambda name=name, part=part: files[part, name](*inputs[part]))
                 for name in CONFIGS}, 'cpu', warmup=1, repeat=args.repeat)
            result['milliseconds'][part] = {
                name: {key: round(1000 * getattr(timing, key), 1)
                       for key in ('median', 'low', 'high')} for name, timing in timings.items()}
            medians = {name: timing.median for name, timing in timings.items()}
            result['milliseconds'][part]['pruned is times as fast'] = round(
                medians['dense'] / medians['pruned'], 3)
            print(part, result['milliseconds'][part], flush=True)
    result['environment'] = environment('cpu')
    if args.json:
        args.json.parent.mkdir(parents=True, exist_ok=True)
        args.json.write_text(json.dumps(result, indent=1) + '\n')
    return 0


if __name__ == '__main__':
    with one_clear_error():
        raise SystemExit(main())
