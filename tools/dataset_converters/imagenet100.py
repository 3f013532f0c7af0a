"""ImageNet-100 as symbolic links into ImageNet-1k; nothing is copied.

SRC holds ImageNet-1k as mmpretrain reads it: train/<wnid>/*.JPEG and either val/<wnid>/*.JPEG or
val/*.JPEG with meta/val.txt (file name and class number, classes numbered by sorted wnid).
DST gets train/<wnid> and val/<wnid> for the classes of the list.

Example:
    python tools/dataset_converters/imagenet100.py data/imagenet data/imagenet100
"""

import argparse
import os
from pathlib import Path

from mmext.cli.clear_errors import one_clear_error

CLASSES = (
    Path(__file__).resolve().parents[2] / 'configs/_base_/datasets/imagenet100_classes.txt')


def link(source: Path, target: Path) -> None:
    if target.is_symlink():
        target.unlink()
    os.symlink(source.resolve(), target)


def link_class_folders(source: Path, target: Path, classes: list[str]) -> None:
    missing = [name for name in classes if not (source / name).is_dir()]
    if missing:
        raise SystemExit(f'{source} lacks {len(missing)} of {len(classes)} class folders, '
                         f'the first is {missing[0]}')
    target.mkdir(parents=True, exist_ok=True)
    for name in classes:
        link(source / name, target / name)


def link_flat_files(source: Path, list_file: Path, wnids: list[str], target: Path,
                    classes: list[str]) -> None:
    """Sort the files of one folder into class folders by a list of `name number` lines."""
    found = dict.fromkeys(classes, 0)
    for line in list_file.read_text().splitlines():
        name, number = line.rsplit(' ', 1)
        wnid = wnids[int(number)]
        if wnid not in found:
            continue
        (target / wnid).mkdir(parents=True, exist_ok=True)
        link(source / name, target / wnid / Path(name).name)
        found[wnid] += 1
    empty = [wnid for wnid, count in found.items() if not count]
    if empty:
        raise SystemExit(f'{list_file} has no image of {len(empty)} classes, e.g. {empty[0]}')


def main(argv=None):
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument('src', type=Path, help='ImageNet-1k')
    parser.add_argument('dst', type=Path, help='folder to make')
    parser.add_argument('--classes', type=Path, default=CLASSES, help='file with one wnid a line')
    args = parser.parse_args(argv)
    classes = args.classes.read_text().split()

    link_class_folders(args.src / 'train', args.dst / 'train', classes)
    val_list = args.src / 'meta' / 'val.txt'
    if (args.src / 'val' / classes[0]).is_dir():
        link_class_folders(args.src / 'val', args.dst / 'val', classes)
    elif val_list.is_file():
        wnids = sorted(path.name for path in (args.src / 'train').iterdir() if path.is_dir())
        if len(wnids) != 1000:
            raise SystemExit(f'{args.src / "train"} has {len(wnids)} class folders; the numbers in '
                             f'{val_list} need all 1,000 to be understood')
        link_flat_files(args.src / 'val', val_list, wnids, args.dst / 'val', classes)
    else:
        raise SystemExit(f'{args.src / "val"} has no class folders and {val_list} does not exist')
    print(f'{len(classes)} classes linked in {args.dst}')


if __name__ == '__main__':
    with one_clear_error():
        main()
