"""Run a trained detector or classifier on images and draw what it found.

    python tools/demo.py IMAGE|FOLDER CONFIG CHECKPOINT --out-dir outputs

A detector writes OUT_DIR/vis/<image> with boxes and masks and OUT_DIR/preds/<image>.json, a
classifier OUT_DIR/<image>.png and OUT_DIR/predictions.json; a.jpg and a.png get different names.
An image that cannot be read is
named and left out; the exit status is then 1.
"""

import argparse
import json
import sys
import tempfile
from pathlib import Path

from mmext.cli.arguments import add_amp
from mmext.cli.clear_errors import one_clear_error

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
    add_amp(parser)
    args = parser.parse_args(argv)
    for path in (args.images, Path(args.checkpoint)):
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


def adopt(folder: str, out_dir: Path, name: str) -> None:
    """Move what was written about one image to ``out_dir``, under a name of its own."""
    for path in [path for path in Path(folder).rglob('*') if path.is_file()]:
        target = out_dir / path.relative_to(folder).with_name(name + path.suffix)
        target.parent.mkdir(parents=True, exist_ok=True)
        path.replace(target)


def detector(args, cfg):
    """A function from an image's path to one line about it; draws and writes on the way."""
    from mmdet.apis import DetInferencer

    from mmext.cli.checkpoint_check import check_fits
    from mmext.cli.outputs import Names

    infer = DetInferencer(
        model=cfg, weights=args.checkpoint, device=args.device, show_progress=False)
    check_fits(args.checkpoint, infer.model)
    if args.amp:
        from mmext.cli.half_precision import use_half_precision
        use_half_precision(infer.model, args.amp)
    classes = infer.model.dataset_meta['classes']
    names_of = Names()

    def run(image: Path) -> str:
        with tempfile.TemporaryDirectory(dir=args.out_dir) as folder:
            found = infer(
                str(image), out_dir=folder, pred_score_thr=args.score_thr,
                no_save_pred=False)['predictions'][0]
            adopt(folder, args.out_dir, names_of(image))
        names = [
            classes[label] for label, score in zip(found['labels'], found['scores'], strict=True)
            if score >= args.score_thr
        ]
        counts = ', '.join(f'{names.count(name)} {name}' for name in dict.fromkeys(names))
        return counts or f'nothing above {args.score_thr}'

    return run


def classifier(args, cfg):
    """As ``detector``, for a classifier."""
    from mmengine.device import get_device
    from mmpretrain import ImageClassificationInferencer, get_model

    from mmext.cli.checkpoint_check import check_fits
    from mmext.cli.outputs import Names

    model = get_model(cfg, args.checkpoint, args.device or get_device())
    check_fits(args.checkpoint, model)
    if args.amp:
        from mmext.cli.half_precision import use_half_precision
        use_half_precision(model, args.amp)
    infer = ImageClassificationInferencer(model)
    predictions = {}
    names_of = Names()

    def run(image: Path) -> str:
        with tempfile.TemporaryDirectory(dir=args.out_dir) as folder:
            found = infer(str(image), show_dir=folder)[0]
            adopt(folder, args.out_dir, names_of(image))
        label, score = int(found['pred_label']), float(found['pred_score'])
        name = found.get('pred_class', str(label))
        predictions[image.name] = {'label': label, 'class': name, 'score': score}
        (args.out_dir / 'predictions.json').write_text(json.dumps(predictions, indent=1))
        return f'{name} ({score:.2f})'

    return run


def main(argv=None):
    args = parse_args(argv)
    # after parsing, so that --help and typing errors answer at once
    from mmext.checkpoints.safe_reader import forbid_code_in_checkpoints
    from mmext.cli.checkpoint_check import check_readable
    from mmext.cli.launch import load_config, set_visualizer
    from mmext.datasets.loading import read_image
    cfg = load_config(args.config, None, None, 'none')
    scope = cfg.default_scope
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
            read_image(str(image))  # names what the inferencers would draw half
            print(f'{image.name}: {run(image)}')
        except Exception as error:  # whatever is wrong with one image, the others are drawn
            failed += 1
            print(f'{image.name}: left out, {type(error).__name__}: {error}', file=sys.stderr)
    print(f'{len(images) - failed} of {len(images)} images, drawn in {args.out_dir}')
    return int(failed > 0)


if __name__ == '__main__':
    with one_clear_error():
        sys.exit(main())
