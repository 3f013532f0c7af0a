"""Time and peak memory of COCO evaluation: mmext.CocoMetric against mmdet.CocoMetric.

Makes ground truth and detections as numerous as COCO val2017's (80 classes, 7.3 objects and 100
detections an image, half of them near an object) and hands them to both metrics as a test loop
does: image by image, then the evaluation. Every measurement is a process of its own, in
alternation; times are those of the metric alone, memory is what it adds to the peak. Masks are
given back to the system at once (MALLOC_MMAP_THRESHOLD_): in glibc's heap the small arrays that
mmdet's metric keeps lie between them, and 5,000 images of masks take more than 20 GB.

Example:
    python tools/dev/evaluation_time.py --images 5000 --repeat 3 --json evaluation.json
"""

import argparse
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from statistics import median

import numpy as np

from mmext.cli.arguments import add_overwrite, command_line, positive
from mmext.cli.clear_errors import one_clear_error
from mmext.cli.outputs import check_outputs

SIZE = 480, 640
CLASSES = 80
OBJECTS = 7.3  # an image, as in val2017
DETECTIONS = 100
METRICS = {'mmdet': 'mmdet.CocoMetric', 'mmext': 'mmext.CocoMetric'}


def random_boxes(rng, number: int) -> np.ndarray:
    """(n, 4): x1, y1, x2, y2; sides from 8 pixels to half of the image, small ones more often."""
    side = np.exp(rng.uniform(np.log(8), np.log(SIZE[0] / 2), (number, 2)))
    corner = rng.uniform(0, np.array(SIZE[::-1]) - side)
    return np.concatenate([corner, corner + side], 1)


def octagon(box) -> list[float]:
    angle = np.arange(8) * np.pi / 4
    (x1, y1, x2, y2) = box
    return np.stack([(x1 + x2) / 2 + (x2 - x1) / 2 * np.cos(angle),
                     (y1 + y2) / 2 + (y2 - y1) / 2 * np.sin(angle)], 1).ravel().tolist()


def write_ground_truth(path: Path, images: int) -> None:
    rng = np.random.default_rng(0)
    anns = []
    for image in range(1, images + 1):
        for box in random_boxes(rng, rng.poisson(OBJECTS)):
            w, h = (box[2:] - box[:2]).tolist()
            anns.append(dict(
                id=len(anns) + 1, image_id=image, category_id=int(rng.integers(1, CLASSES + 1)),
                bbox=[*box[:2].tolist(), w, h], area=w * h * 2**-.5,
                iscrowd=0, segmentation=[octagon(box)]))
    path.write_text(json.dumps(dict(
        images=[dict(id=i, width=SIZE[1], height=SIZE[0], file_name=f'{i}.jpg')
                for i in range(1, images + 1)],
        categories=[dict(id=c, name=f'class {c}') for c in range(1, CLASSES + 1)],
        annotations=anns)))


def predictions(path: Path, masks: bool):
    """Data samples one by one, as a detector puts them out."""
    import torch
    from pycocotools import mask as mask_util
    gt = json.loads(path.read_text())
    objects = {}
    for ann in gt['annotations']:
        x, y, w, h = ann['bbox']
        objects.setdefault(ann['image_id'], []).append(
            ([x, y, x + w, y + h], ann['category_id'] - 1))
    for info in gt['images']:
        rng = np.random.default_rng(info['id'])
        boxes = random_boxes(rng, DETECTIONS)
        labels = rng.integers(0, CLASSES, DETECTIONS)
        found = objects.get(info['id'], [])
        near = rng.integers(0, len(found), DETECTIONS // 2) if found else []
        for i, j in enumerate(near):
            box, labels[i] = np.array(found[j][0]), found[j][1]
            boxes[i] = box + rng.normal(0, .08, 4) * np.tile(box[2:] - box[:2], 2)
        boxes[:, 2:] = np.maximum(boxes[:, 2:], boxes[:, :2] + 4)
        boxes = boxes.clip(0, np.tile(SIZE[::-1], 2) - 1)
        pred = dict(bboxes=torch.tensor(boxes, dtype=torch.float32), labels=torch.tensor(labels),
                    scores=torch.tensor(np.sort(rng.random(DETECTIONS))[::-1].copy()).float())
        if masks:
            rles = mask_util.frPyObjects([octagon(box) for box in boxes], *SIZE)
            pred['masks'] = torch.tensor(mask_util.decode(rles)).permute(2, 0, 1).bool()
        yield dict(img_id=info['id'], ori_shape=SIZE, pred_instances=pred)


def measure(name: str, task: str, path: Path) -> dict:
    """One metric in this process; seconds in ``process`` and in ``evaluate``, peak MiB."""
    import torch
    from mmdet.utils import register_all_modules
    from mmengine.evaluator import Evaluator
    from mmengine.logging import MMLogger

    import mmext.registry  # noqa: F401
    register_all_modules()
    torch.set_num_threads(1)
    MMLogger.get_instance('evaluation', log_level='WARNING')
    from mmdet.registry import METRICS as registry
    metric = registry.build(dict(type=METRICS[name], ann_file=str(path), metric=[task]))
    evaluator = Evaluator(metric)
    evaluator.dataset_meta = dict(classes=[f'class {c}' for c in range(1, CLASSES + 1)])
    samples = predictions(path, task == 'segm')
    processing, number = 0., 0
    for sample in samples:
        if not number:
            before = peak()
        number += 1
        started = time.perf_counter()
        metric.process({}, [sample])
        processing += time.perf_counter() - started
    started, cpu = time.perf_counter(), time.process_time()
    values = evaluator.evaluate(number)
    return {'process': processing, 'evaluate': time.perf_counter() - started,
            'evaluate_cpu': time.process_time() - cpu, 'memory': peak() - before, 'values': values}


def peak() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def parse_args(argv=None):
    parser = command_line(__doc__)
    parser.add_argument('--images', type=positive, default=5000)
    parser.add_argument('--tasks', nargs='+', choices=['bbox', 'segm'], default=['bbox', 'segm'])
    parser.add_argument('--repeat', type=positive, default=3, help='measurements of each')
    parser.add_argument('--json', type=Path, metavar='OUT', help='file for all numbers')
    parser.add_argument('--one', nargs=3, help=argparse.SUPPRESS)
    add_overwrite(parser)
    return parser.parse_args(argv)


def main(argv=None) -> int:
    args = parse_args(argv)
    if args.one:
        name, task, path = args.one
        print(json.dumps(measure(name, task, Path(path))))
        return 0
    check_outputs([args.json], args.overwrite)
    found = {}
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / 'truth.json'
        write_ground_truth(path, args.images)
        for _ in range(args.repeat):
            for task in args.tasks:
                for name in METRICS:
                    out = subprocess.run(
                        [sys.executable, __file__, '--one', name, task, str(path)],
                        check=True, capture_output=True, text=True,
                        env={**os.environ, 'MALLOC_MMAP_THRESHOLD_': str(2**20)}).stdout
                    found.setdefault(task, {}).setdefault(name, []).append(
                        json.loads(out.splitlines()[-1]))
                    print(task, name, {k: round(v, 2) for k, v in found[task][name][-1].items()
                                       if k != 'values'}, flush=True)
    for task, runs in found.items():
        first = [runs[name][0]['values'] for name in METRICS]
        print(f'{task}: values {"equal" if first[0] == first[1] else first}')
        for key in ('process', 'evaluate', 'memory'):
            old, new = (median(run[key] for run in runs[name]) for name in METRICS)
            print(f'  {key:10} {old:8.2f} {new:8.2f}   {old / new:.1f} x')
        old, new = (median(run['process'] + run['evaluate'] for run in runs[name])
                    for name in METRICS)
        print(f'  both       {old:8.2f} {new:8.2f}   {old / new:.1f} x')
    if args.json:
        args.json.parent.mkdir(parents=True, exist_ok=True)
        args.json.write_text(json.dumps({'images': args.images, 'runs': found}, indent=1) + '\n')
    return 0


if __name__ == '__main__':
    with one_clear_error():
        raise SystemExit(main())
