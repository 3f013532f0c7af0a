"""Predict: run a trained detector, segmentor or classifier on images and draw what it found.

Writes below OUT_DIR, each file under the path of its image (sub-folders included):

    vis/IMAGE                       boxes, masks, labels drawn
    results.json, images.json       detectors: COCO's results format and the ids it uses
    panoptic.json, panoptic/        panoptic models: COCO's panoptic format
    semantic/IMAGE.png              semantic models: the label of every pixel
    predictions.json                classifiers: label, class and score of every image

An image that cannot be read is named and left out; the exit status is then 1.

Examples:
    mmext predict --model digits IMAGE                 a model that travels with mmext
    mmext predict FOLDER CONFIG CHECKPOINT --out-dir outputs --batch-size 8
"""

import argparse
import json
import os
import sys
from pathlib import Path

from mmext.cli.arguments import (
    add_amp,
    add_cfg_options,
    add_device,
    add_overwrite,
    positive,
)
from mmext.cli.clear_errors import one_clear_error
from mmext.cli.package_files import TRAINED


def parse_args(argv=None):
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument('images', type=Path, help='an image or a folder of images')
    parser.add_argument('config', nargs='?', help='path of the config, or its mmext:: name')
    parser.add_argument('checkpoint', nargs='?')
    parser.add_argument(
        '--model', choices=list(TRAINED), help='instead of config and checkpoint')
    parser.add_argument('--out-dir', type=Path, default=Path('outputs'), help='(%(default)s)')
    parser.add_argument('--batch-size', type=positive, default=1, help='(%(default)s)')
    parser.add_argument('--score-thr', type=float, default=0.3,
                        help='draw objects from this score on (%(default)s)')
    parser.add_argument('--no-vis', action='store_true', help='draw nothing')
    parser.add_argument(
        '--ann-file', type=Path, metavar='JSON',
        help='take the ids of images and categories from this COCO file, for an evaluation '
        '(default: images numbered from 1, labels from 1)')
    add_overwrite(parser)
    add_device(parser)
    add_amp(parser)
    add_cfg_options(parser)
    args = parser.parse_args(argv)
    if args.model and args.config:
        parser.error('give --model or CONFIG CHECKPOINT, not both')
    if not args.model and not args.checkpoint:
        parser.error('CONFIG and CHECKPOINT are missing (or --model NAME)')
    for path in (args.images, args.checkpoint, args.ann_file):
        if path is not None and not os.path.exists(path):
            parser.error(f'{path} does not exist')
    return args


def in_words(found: dict, score_thr: float) -> str:
    """One line about an image: counts of the classes, their pixels, or the image's class."""
    if 'scores' in found:
        return f'{found["class"]} ({found["score"]:.2f})'
    if 'labels' in found:
        return ', '.join(f'{one["class"]} {one["area"] / found["labels"].size:.0%}'
                         for one in sorted(found['classes'], key=lambda one: -one['area']))
    names = [one['class'] for one in found.get('segments', ())]
    names = names or [one['class'] for one in found.get('objects', ())
                      if one['score'] >= score_thr]
    counts = ', '.join(f'{names.count(name)} {name}' for name in dict.fromkeys(names))
    return counts or f'nothing above {score_thr}'


def main(argv=None):
    args = parse_args(argv)
    import mmext
    from mmext.cli.outputs import check_outputs
    from mmext.cli.prediction_files import PredictionFiles, files_of
    from mmext.cli.predictor import find_images
    from mmext.cli.progress_bar import progress

    one = args.images.is_file()
    images = [str(args.images)] if one else find_images(args.images)
    root = args.images.parent if one else args.images
    check_outputs(files_of(args.out_dir, root, images, not args.no_vis), args.overwrite,
                  [*images, args.ann_file])
    coco = json.loads(args.ann_file.read_text()) if args.ann_file else None
    model = mmext.load(args.model or args.config, args.checkpoint, device=args.device,
                       options=args.cfg_options)
    if args.amp:
        from mmext.cli.half_precision import use_half_precision
        use_half_precision(model.model, args.amp)
    files = PredictionFiles(args.out_dir, root, model.classes, coco, not args.no_vis,
                            args.score_thr)
    failed = []

    def left_out(image, error):
        failed.append(image)
        print(f'{os.path.relpath(image, root)}: left out, {type(error).__name__}: {error}',
              file=sys.stderr)
        step()

    try:
        with progress('predicting', len(images)) as step:
            for prediction in model.stream(images, args.batch_size, skip=left_out):
                found = files.add(prediction)
                print(f'{os.path.relpath(prediction.image, root)}: '
                      f'{in_words(found, args.score_thr)}')
                step()
    finally:  # what is done by then is kept
        written = files.close()
    print(f'{len(images) - len(failed)} of {len(images)} images, in {args.out_dir}: '
          + ', '.join([*(['vis'] if files.draw else []), *(path.name for path in written)]))
    return int(bool(failed))


if __name__ == '__main__':
    with one_clear_error():
        sys.exit(main())
