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

from mmext.cli.arguments import add_overwrite
from mmext.cli.clear_errors import one_clear_error

CLASSES = (
    Path(__file__).resolve().parents[2] / 'configs/_base_/datasets/imagenet100_classes.txt')


def class_folders(source: Path, target: Path, classes: list[str]) -> dict[Path, Path]:
    """Links to make, target -> source."""
    missing = [name for name in classes if not (source / name).is_dir()]
    if missing:
        raise SystemExit(f'{source} lacks {len(missing)} of {len(classes)} class folders, '
                         f'the first is {missing[0]}')
    return {target / name: source / name for name in classes}


def flat_files(source: Path, list_file: Path, wnids: list[str], target: Path,
               classes: list[str]) -> dict[Path, Path]:
    """Files of one folder into class folders, by a list of `name number` lines."""
    found = {name: {} for name in classes}
    for line in list_file.read_text().splitlines():
        name, number = line.rsplit(' ', 1)
        wnid = wnids[int(number)]
        if wnid in found:
            found[wnid][target / wnid / Path(name).name] = source / name
    empty = [wnid for wnid, links in found.items() if not links]
    if empty:
        raise SystemExit(f'{list_file} has no image of {len(empty)} classes, e.g. {empty[0]}')
    return {link: file for links in found.values() for link, file in links.items()}


def make(links: dict[Path, Path], overwrite: bool) -> None:
    """Make the links; one that is there already stays, one to elsewhere goes with --overwrite."""
    new = [link for link, source in links.items()
           if not (link.is_symlink() and link.resolve() == source.resolve())]
    for link in new:
        if link.exists() and not link.is_symlink():
            raise SystemExit(f'{link} is there and no link: give another DST, it is not replaced '
                             'by --overwrite either')
        if link.is_symlink() and not overwrite:
            raise SystemExit(f'{link} leads to {os.readlink(link)}; --overwrite replaces the link')
    for link in new:
        link.parent.mkdir(parents=True, exist_ok=True)
        link.unlink(missing_ok=True)
        link.symlink_to(links[link].resolve())


def main(argv=None):
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument('src', type=Path, help='ImageNet-1k')
    parser.add_argument('dst', type=Path, help='folder to make')
    parser.add_argument('--classes', type=Path, default=CLASSES, help='file with one wnid a line')
    add_overwrite(parser)
    args = parser.parse_args(argv)
    if args.src.resolve() == args.dst.resolve():
        raise SystemExit(f'{args.dst} is an input of this command: give another DST')
    classes = args.classes.read_text().split()

    links = class_folders(args.src / 'train', args.dst / 'train', classes)
    val_list = args.src / 'meta' / 'val.txt'
    if (args.src / 'val' / classes[0]).is_dir():
        links |= class_folders(args.src / 'val', args.dst / 'val', classes)
    elif val_list.is_file():
        wnids = sorted(path.name for path in (args.src / 'train').iterdir() if path.is_dir())
        if len(wnids) != 1000:
            raise SystemExit(f'{args.src / "train"} has {len(wnids)} class folders; the numbers in '
                             f'{val_list} need all 1,000 to be understood')
        links |= flat_files(args.src / 'val', val_list, wnids, args.dst / 'val', classes)
    else:
        raise SystemExit(f'{args.src / "val"} has no class folders and {val_list} does not exist')
    make(links, args.overwrite)
    print(f'{len(classes)} classes linked in {args.dst}')


if __name__ == '__main__':
    with one_clear_error():
        main()
