"""Run a trained detector or classifier on images and draw what it found.

    python tools/demo.py IMAGE|FOLDER CONFIG CHECKPOINT --out-dir outputs

A detector writes OUT_DIR/vis/<image> with boxes and masks and OUT_DIR/preds/<image>.json. A
panoptic or semantic model also writes a PNG of its segments: OUT_DIR/preds/<image>_panoptic_seg.png
(ids) or <image>_sem_seg.png (labels). A classifier writes OUT_DIR/<image>.png and
OUT_DIR/predictions.json. An image that cannot be read is named and left out; the exit status is
then 1.
"""

import argparse
import json
import sys
from pathlib import Path

from mmengine.config import Config
from mmengine.device import get_device

import mmext.registry  # noqa: F401  (first: it prepares mmcv's ops for mmdet)
from mmext.checkpoints.safe_reader import forbid_code_in_checkpoints
from mmext.cli.checkpoint_check import check_fits, check_readable
from mmext.cli.launch import one_clear_error, set_visualizer

SUFFIXES = {'.jpg', '.jpeg', '.png', '.bmp', '.tif', '.tiff', '.webp', '.ppm', '.pgm'}


def parse_args(argv=None):
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument('images', type=Path, help='an image or a folder of images')
    parser.add_argument('config')
    parser.add_argument('checkpoint')
    parser.add_argument('--out-dir', type=Path, default=Path('outputs'))
    parser.add_argument(
        '--score-thr', type=float, default=0.3, help='draw objects from this score on')
    parser.add_argument('--device', help='default: a GPU where there is one')
    args = parser.parse_args(argv)
    for path in (args.images, Path(args.config), Path(args.checkpoint)):
        if not path.exists():
            parser.error(f'{path} does not exist')
    return args


def find_images(path: Path) -> list[Path]:
    if path.is_file():
        return [path]
    images = sorted(file for file in path.iterdir() if file.suffix.lower() in SUFFIXES)
    if not images:
        raise SystemExit(f'error: no images in {path} ({", ".join(sorted(SUFFIXES))})')
    return images


def detector(args, cfg):
    """A function from an image's path to one line about it; draws and writes on the way."""
    import cv2
    import mmengine
    import numpy as np
    from mmdet.apis import DetInferencer

    from mmext.cli.panoptic_check import check_packages

    class Inferencer(DetInferencer):
        """mmdet's, which knows no semantic maps and does not say what a panoptic one shows."""

        def pred2dict(self, sample, pred_out_dir=''):
            found = sample.get('pred_panoptic_seg', sample.get('pred_sem_seg'))
            if found is None:
                return super().pred2dict(sample, pred_out_dir)
            ids = found.sem_seg[0].cpu().numpy().copy()  # mmdet's method writes into it
            result = super().pred2dict(sample, pred_out_dir)
            stem = Path(pred_out_dir) / 'preds' / Path(sample.img_path).stem
            if 'pred_sem_seg' in sample:
                result['sem_seg_path'] = f'{stem}_sem_seg.png'
                cv2.imwrite(result['sem_seg_path'], ids.astype(np.uint8))
            labels = (np.unique(ids) % 1000).tolist()  # of mmdet's ids; the last label is void
            result['segments'] = [classes[label] for label in labels if label < len(classes)]
            mmengine.dump(result, f'{stem}.json')
            return result

    check_packages(cfg.test_dataloader, 'test_dataloader')
    infer = Inferencer(
        model=cfg, weights=args.checkpoint, device=args.device, show_progress=False)
    check_fits(args.checkpoint, infer.model)
    classes = infer.model.dataset_meta['classes']

    def run(image: Path) -> str:
        found = infer(
            str(image), out_dir=str(args.out_dir), pred_score_thr=args.score_thr,
            no_save_pred=False)['predictions'][0]
        names = found['segments'] if 'segments' in found else [
            classes[label] for label, score in zip(found['labels'], found['scores'], strict=True)
            if score >= args.score_thr
        ]
        counts = ', '.join(f'{names.count(name)} {name}' for name in dict.fromkeys(names))
        return counts or f'nothing above {args.score_thr}'

    return run


def classifier(args, cfg):
    """As ``detector``, for a classifier."""
    from mmpretrain import ImageClassificationInferencer, get_model

    model = get_model(cfg, args.checkpoint, args.device or get_device())
    check_fits(args.checkpoint, model)
    infer = ImageClassificationInferencer(model)
    predictions = {}

    def run(image: Path) -> str:
        found = infer(str(image), show_dir=str(args.out_dir))[0]
        label, score = int(found['pred_label']), float(found['pred_score'])
        name = found.get('pred_class', str(label))
        predictions[image.name] = {'label': label, 'class': name, 'score': score}
        (args.out_dir / 'predictions.json').write_text(json.dumps(predictions, indent=1))
        return f'{name} ({score:.2f})'

    return run


def main(argv=None):
    args = parse_args(argv)
    cfg = Config.fromfile(args.config)
    scope = cfg.get('default_scope')
    if scope not in ('mmdet', 'mmpretrain'):
        raise SystemExit(f'error: default_scope={scope!r} of {args.config} is neither mmdet nor '
                         'mmpretrain')
    cfg.setdefault('test_dataloader', cfg.get('val_dataloader'))  # for its pipeline
    set_visualizer(cfg)
    images = find_images(args.images)
    forbid_code_in_checkpoints()
    check_readable(args.checkpoint)
    args.out_dir.mkdir(parents=True, exist_ok=True)
    run = (detector if scope == 'mmdet' else classifier)(args, cfg)
    failed = 0
    for image in images:
        try:
            print(f'{image.name}: {run(image)}')
        except Exception as error:  # whatever is wrong with one image, the others are drawn
            failed += 1
            print(f'{image.name}: left out, {type(error).__name__}: {error}', file=sys.stderr)
    print(f'{len(images) - failed} of {len(images)} images, drawn in {args.out_dir}')
    return int(failed > 0)


if __name__ == '__main__':
    with one_clear_error():
        sys.exit(main())
