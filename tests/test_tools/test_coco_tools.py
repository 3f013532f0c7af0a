"""coco_subset, check_coco and eval_coco on real COCO annotations."""

import importlib.util
import json
import subprocess
import sys

import numpy as np
import pytest
import torch
from pycocotools import mask as mask_utils
from pycocotools.coco import COCO
from pycocotools.cocoeval import COCOeval

import mmext.registry  # noqa: F401  (first: it prepares mmcv's ops for mmdet)


@pytest.fixture(scope='module')
def load_tool(root_dir):

    def load(path):
        spec = importlib.util.spec_from_file_location(path.split('/')[-1][:-3],
                                                      root_dir / 'tools' / path)
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        return module

    return load


@pytest.fixture(scope='module')
def coco_mini(shared_dir):
    return shared_dir / 'data' / 'coco_mini'


def detections(gt, seed=0):
    """Objects of the file, moved, some missed, some wrong, as results with boxes and masks."""
    rng = np.random.default_rng(seed)
    results = []
    for ann in gt.anns.values():
        if ann['iscrowd'] or rng.random() < 0.2:
            continue
        image = gt.imgs[ann['image_id']]
        x, y, w, h = ann['bbox']
        shift = rng.normal(0, 0.05, 2) * (w, h)
        rle = gt.annToRLE(ann)
        if rng.random() < 0.5:  # a worse mask
            mask = np.zeros((image['height'], image['width']), np.uint8)
            mask[int(y):int(y + h) + 1, int(x):int(x + w) + 1] = 1
            rle = mask_utils.encode(np.asfortranarray(mask))
        category = ann['category_id'] if rng.random() < 0.8 else int(rng.choice(gt.getCatIds()))
        counts = rle['counts']
        results.append(dict(
            image_id=ann['image_id'], category_id=category, score=float(rng.random()),
            bbox=[float(x + shift[0]), float(y + shift[1]), float(w), float(h)],
            segmentation=dict(size=[int(side) for side in rle['size']],
                              counts=counts.decode() if isinstance(counts, bytes) else counts)))
    return results


@pytest.fixture(scope='module')
def saved(coco_mini, tmp_path_factory):
    ann_file = coco_mini / 'annotations' / 'instances_val2017.json'
    results = detections(COCO(str(ann_file)))
    path = tmp_path_factory.mktemp('results') / 'results.json'
    path.write_text(json.dumps(results))
    return ann_file, results, path


def test_eval_equals_pycocotools(load_tool, saved, tmp_path):
    ann_file, results, path = saved
    load_tool('analysis_tools/eval_coco.py').main(
        ['--gt', str(ann_file), '--results', str(path), '--overwrite',
         '--json', str(tmp_path / 'ap.json'),
         '--classwise'])
    report = json.loads((tmp_path / 'ap.json').read_text())
    gt = COCO(str(ann_file))
    for iou_type, key in (('bbox', 'bbox'), ('segm', 'segmentation')):
        only = [{k: one[k] for k in ('image_id', 'category_id', 'score', key)} for one in results]
        run = COCOeval(gt, gt.loadRes(only), iou_type)
        run.evaluate()
        run.accumulate()
        run.summarize()
        assert 0.1 < run.stats[0] < 0.9
        np.testing.assert_allclose(list(report[iou_type].values()), run.stats, atol=5e-4)
        classes = [ap for ap in report[f'{iou_type}_classwise'].values() if ap >= 0]
        assert np.mean(classes) == pytest.approx(run.stats[0])


def test_eval_equals_coco_metric(load_tool, saved, tmp_path):
    """The pickle of tools/test.py, and mmdet's own metric on the same detections."""
    from mmdet.datasets import CocoDataset
    from mmdet.evaluation import CocoMetric
    from mmengine.fileio import dump
    ann_file, results, _ = saved
    gt = COCO(str(ann_file))
    labels = {category_id: i for i, category_id in enumerate(gt.getCatIds())}
    predictions = []
    for image_id, image in gt.imgs.items():
        found = [one for one in results if one['image_id'] == image_id]
        boxes = np.array([one['bbox'] for one in found], dtype=np.float64).reshape(-1, 4)
        boxes[:, 2:] += boxes[:, :2]
        predictions.append(dict(
            img_id=image_id, ori_shape=(image['height'], image['width']),
            pred_instances=dict(
                bboxes=torch.from_numpy(boxes),
                labels=torch.tensor([labels[one['category_id']] for one in found], dtype=int),
                scores=torch.tensor([one['score'] for one in found], dtype=torch.double),
                masks=[one['segmentation'] for one in found])))
    dump(predictions, str(tmp_path / 'out.pkl'))
    tool = load_tool('analysis_tools/eval_coco.py')
    tool.main(['--gt', str(ann_file), '--results', str(tmp_path / 'out.pkl'),
               '--overwrite', '--json', str(tmp_path / 'ap.json')])
    report = json.loads((tmp_path / 'ap.json').read_text())
    metric = CocoMetric(ann_file=str(ann_file), metric=['bbox', 'segm'])
    metric.dataset_meta = CocoDataset.METAINFO
    metric.process({}, predictions)
    expected = metric.evaluate(len(predictions))
    for iou_type in ('bbox', 'segm'):
        for name, key in (('AP', 'mAP'), ('AP50', 'mAP_50'), ('APs', 'mAP_s'), ('APl', 'mAP_l')):
            assert report[iou_type][name] == pytest.approx(
                expected[f'coco/{iou_type}_{key}'], abs=6e-4), (iou_type, name)


def test_eval_of_nothing_and_of_strangers(load_tool, saved, tmp_path):
    ann_file, results, _ = saved
    tool = load_tool('analysis_tools/eval_coco.py')
    path, out = tmp_path / 'r.json', tmp_path / 'ap.json'
    path.write_text('[]')
    tool.main(['--gt', str(ann_file), '--results', str(path), '--overwrite', '--json', str(out)])
    assert json.loads(out.read_text())['bbox']['AP'] == 0
    for change, message in ((dict(image_id=-5), 'images'), (dict(category_id=1000), 'classes')):
        path.write_text(json.dumps([dict(results[0], **change)]))
        with pytest.raises((SystemExit, ValueError), match=message):
            tool.main(['--gt', str(ann_file), '--results', str(path)])
    path.write_text('{"images": []}')
    with pytest.raises((SystemExit, ValueError), match='no list of COCO results'):
        tool.main(['--gt', str(ann_file), '--results', str(path)])


def as_pickle(results, gt, category_ids):
    """What ``tools/test.py --out`` of a model with these classes writes."""
    predictions = []
    for image_id in gt.imgs:
        found = [one for one in results if one['image_id'] == image_id
                 and one['category_id'] in category_ids]
        boxes = np.array([one['bbox'] for one in found], dtype=np.float64).reshape(-1, 4)
        boxes[:, 2:] += boxes[:, :2]
        predictions.append(dict(
            img_id=image_id, ori_shape=(1, 1), pred_instances=dict(
                bboxes=torch.from_numpy(boxes),
                labels=torch.tensor([category_ids.index(one['category_id']) for one in found],
                                    dtype=int),
                scores=torch.tensor([one['score'] for one in found], dtype=torch.double))))
    return predictions


def test_eval_of_some_classes_equals_coco_metric(load_tool, saved, tmp_path):
    from mmdet.evaluation import CocoMetric
    from mmengine.fileio import dump
    ann_file, results, path = saved
    gt, names = COCO(str(ann_file)), ['person', 'car', 'chair']
    predictions = as_pickle(results, gt, gt.getCatIds(names))
    dump(predictions, str(tmp_path / 'out.pkl'))
    metric = CocoMetric(ann_file=str(ann_file), metric='bbox')
    metric.dataset_meta = dict(classes=names)
    metric.process({}, predictions)
    expected = metric.evaluate(len(predictions))['coco/bbox_mAP']
    tool = load_tool('analysis_tools/eval_coco.py')
    for file in (path, tmp_path / 'out.pkl'):
        tool.main(['--gt', str(ann_file), '--results', str(file), '--iou-types', 'bbox',
                   '--classes', *names, '--classwise', '--overwrite',
                   '--json', str(tmp_path / 'ap.json')])
        report = json.loads((tmp_path / 'ap.json').read_text())
        assert report['bbox']['AP'] == pytest.approx(expected, abs=6e-4) and expected > .1
        assert set(report['bbox_classwise']) == set(names)


def test_boxes_beside_masks_count_once(load_tool, saved, tmp_path):
    """mmdet's results.segm.json repeats the boxes of results.bbox.json."""
    ann_file, results, path = saved
    boxes, out = tmp_path / 'r.bbox.json', tmp_path / 'ap.json'
    boxes.write_text(json.dumps([{k: v for k, v in one.items() if k != 'segmentation'}
                                 for one in results]))
    tool, found = load_tool('analysis_tools/eval_coco.py'), []
    for files in ([boxes], [boxes, path]):
        tool.main(['--gt', str(ann_file), '--overwrite', '--json', str(out), '--iou-types', 'bbox',
                   '--results', *map(str, files)])
        found.append(json.loads(out.read_text())['bbox'])
    assert found[0] == found[1]


def test_eval_refuses_what_it_cannot_evaluate(load_tool, saved, tmp_path):
    ann_file, results, path = saved
    tool, file = load_tool('analysis_tools/eval_coco.py'), tmp_path / 'r.json'

    def refused(message, *options, content=None, results=file):
        if content is not None:
            file.write_text(content if isinstance(content, str) else json.dumps(content))
        with pytest.raises((SystemExit, ValueError), match=message) as error:
            tool.main(['--gt', str(ann_file), '--results', str(results), *options])
        assert len(str(error.value).splitlines()) == 1

    only_boxes = [{k: v for k, v in one.items() if k != 'segmentation'} for one in results]
    keypoints = [{**{k: v for k, v in one.items() if k != 'bbox'}, 'keypoints': [1, 2, 2]}
                 for one in only_boxes]
    refused('no result holds segmentation', '--iou-types', 'segm', content=only_boxes)
    refused('keypoints', content=keypoints)
    refused('keypoints', '--iou-types', 'segm', content=keypoints)
    refused('hold neither', content=[*only_boxes, keypoints[0]])
    refused('is no JSON', content='{"images": [')
    refused('does not exist', results=tmp_path / 'none.json')
    refused('persona', '--classes', 'persona', results=path)


def test_subset(load_tool, coco_mini, tmp_path):
    from mmext.cli.annotation_check import check_coco_file
    ann_file = coco_mini / 'annotations' / 'instances_train2017.json'
    tool = load_tool('dataset_converters/coco_subset.py')
    arguments = ['--num-images', '7', '--classes', 'person', 'car', '--licenses', '4', '5',
                 '--image-dir', str(coco_mini / 'train2017')]
    for name in ('a', 'b'):
        tool.main([str(ann_file), str(tmp_path / f'{name}.json'), *arguments,
                   '--copy-to', str(tmp_path / name), '--attribution', str(tmp_path / 'who.tsv'),
                   '--overwrite'])
    small = json.loads((tmp_path / 'a.json').read_text())
    assert small == json.loads((tmp_path / 'b.json').read_text())
    report = check_coco_file(str(tmp_path / 'a.json'), ['person', 'car'], str(tmp_path / 'a'),
                             masks=True, train=True)
    assert report['errors'] == [] and report['images'] == 7 and report['empty_images'] == 0
    assert {image['license'] for image in small['images']} <= {4, 5}
    assert len(list((tmp_path / 'a').iterdir())) == 7
    assert len((tmp_path / 'who.tsv').read_text().splitlines()) == 8
    # everything of the chosen images and classes is there
    full = COCO(str(ann_file))
    ids = full.getAnnIds(imgIds=[image['id'] for image in small['images']],
                         catIds=full.getCatIds(['person', 'car']))
    assert {ann['id'] for ann in small['annotations']} == set(ids)


@pytest.mark.parametrize('arguments, message', [
    (['--classes', 'unicorn'], 'unicorn'), (['--licenses', '77'], '77'),
    (['--num-images', '65'], 'only'), (['--licenses', '8'], 'no image fits'),
    (['--image-dir', '/nowhere', '--copy-to', 'x'], 'images are not in')])
def test_subset_errors(load_tool, coco_mini, tmp_path, arguments, message):
    ann_file = coco_mini / 'annotations' / 'instances_train2017.json'
    out = tmp_path / 'a.json'
    with pytest.raises((SystemExit, ValueError), match=message):
        load_tool('dataset_converters/coco_subset.py').main([str(ann_file), str(out), *arguments])
    assert not out.exists()


def test_check_coco_from_the_command_line(root_dir, coco_mini, tmp_path):
    tool = root_dir / 'tools' / 'dataset_converters' / 'check_coco.py'
    config = root_dir / 'configs' / 'vitdet' / 'mask-rcnn_deit-s_sfp_lsj-100e_coco.py'
    options = [f'data_root={coco_mini}/']

    def run(*arguments):
        return subprocess.run([sys.executable, tool, *map(str, arguments)], capture_output=True,
                              text=True, cwd=tmp_path)

    good = run('--config', config, '--json', 'out.json', '--cfg-options', *options)
    assert good.returncode == 0, good.stderr
    counts = [report['images'] for report in json.loads((tmp_path / 'out.json').read_text())]
    assert counts == [64, 42]  # the test data are the validation data
    bad = run('--config', config, '--cfg-options', *options,
              'model.roi_head.mask_head.num_classes=3')
    assert bad.returncode == 1 and 'mask_head.num_classes=3' in bad.stderr
    mixed = run('--config', config, '--cfg-options', *options,
                f'val_evaluator.ann_file={coco_mini}/annotations/instances_train2017.json')
    assert mixed.returncode == 1 and 'has 64 images that the data set' in mixed.stderr
    file = run(coco_mini / 'annotations' / 'instances_val2017.json', '--classes', 'persona')
    assert file.returncode == 1 and "did you mean 'person'" in file.stdout
