"""A detector with the padding mask gives an image the same result on any canvas."""

import copy

import pytest
import torch
import torch.nn.functional as F
from detection_helpers import CONFIG_DIR, MASKED, build, fake_batch, load, small_config
from mmdet.models import RPNHead, SingleRoIExtractor
from mmengine.config import Config

from mmext.models import SimpleFeaturePyramid
from mmext.models.detection.padding import MaskedRoIExtractor, MaskedRPNHead, extend_border

DMST = 'mask-rcnn_dmst-s_sfp_lsj-100e_coco.py'
WIN = dict(window_size=3, rel_pos=True)


def shaken(model):
    """Zero biases and unit norms would hide what padding turns into."""
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if 'rpn' not in name and 'roi_head' not in name:
                parameter.add_(.1 * torch.randn(parameter.shape, generator=generator))
            elif name.endswith('bias'):
                parameter.add_(.3 * torch.rand(parameter.shape, generator=generator))
        for name, buffer in model.named_buffers():
            if name.endswith('running_mean'):
                buffer.add_(.2)
    return model.eval()


def predict(model, divisor, sizes=((100, 128), (128, 71))):
    model.data_preprocessor.val_pad_size_divisor = divisor
    results = []
    for i, size in enumerate(sizes):
        batch = fake_batch((size,), (1,), seed=i)
        with torch.no_grad():
            data = model.data_preprocessor(batch, False)
            results.append((model(**data, mode='predict')[0].pred_instances,
                            tuple(data['inputs'].shape[-2:])))
    return results


@pytest.mark.parametrize('name, options', [
    (MASKED, {}), (MASKED, WIN), (DMST, {})], ids=['deit', 'windows', 'dmst'])
def test_detections_do_not_depend_on_the_canvas(name, options):
    model = shaken(build(small_config(name, **options)))
    square, own = predict(model, 128), predict(model, 16)
    assert [canvas for _, canvas in square] == [(128, 128)] * 2
    assert [canvas for _, canvas in own] == [(112, 128), (128, 80)]
    for (a, _), (b, _) in zip(square, own, strict=True):
        assert len(a) == len(b) > 0
        torch.testing.assert_close(a.bboxes, b.bboxes, atol=1e-3, rtol=1e-4)
        torch.testing.assert_close(a.scores, b.scores, atol=1e-4, rtol=1e-4)
        assert torch.equal(a.labels, b.labels)
        assert (a.masks != b.masks).float().mean() < 1e-3


@pytest.mark.parametrize('part', ['neck', 'rpn_head', 'roi_head', 'backbone'])
def test_each_part_is_needed(part):
    """Left as mmdet or the paper has it, any one of them lets the canvas show."""
    cfg = small_config(MASKED)
    if part == 'neck':
        cfg.model.neck.masked = False
    elif part == 'rpn_head':
        cfg.model.rpn_head.type = 'RPNHead'
    elif part == 'roi_head':
        cfg.model.roi_head.bbox_roi_extractor.type = 'SingleRoIExtractor'
    else:
        cfg.model.backbone.pos_fit = 'resize'
    model = shaken(build(cfg))
    # 96 rows are whole patches: RoIAlign's samples beyond the image's last row are padding
    (a, _), = predict(model, 128, ((96, 128),))
    (b, _), = predict(model, 16, ((96, 128),))
    assert len(a) != len(b) or (a.bboxes - b.bboxes).abs().max() > 1e-3 or (
        a.scores - b.scores).abs().max() > 1e-4


def test_batch_of_unlike_sizes_is_padded_to_its_largest():
    model = shaken(build(small_config(MASKED)))
    model.data_preprocessor.val_pad_size_divisor = 16
    batch = fake_batch(((70, 128), (100, 60)), (1, 1))
    data = model.data_preprocessor(copy.deepcopy(batch), False)
    assert data['inputs'].shape[-2:] == (112, 128)
    with torch.no_grad():
        together = [sample.pred_instances for sample in model(**data, mode='predict')]
        for i, want in enumerate(together):
            one = {key: value[i:i + 1] for key, value in copy.deepcopy(batch).items()}
            alone = model(**model.data_preprocessor(one, False), mode='predict')[0].pred_instances
            torch.testing.assert_close(alone.scores, want.scores, atol=1e-4, rtol=1e-4)
            torch.testing.assert_close(alone.bboxes, want.bboxes, atol=1e-3, rtol=1e-4)


def test_training_keeps_the_square_canvas():
    model = build(small_config(MASKED))
    data = model.data_preprocessor(fake_batch(), True)
    assert data['inputs'].shape[-2:] == (128, 128)
    losses = model(**data, mode='loss')
    total, _ = model.parse_losses(losses)
    total.backward()
    assert total.isfinite()
    assert all(p.grad is not None and p.grad.isfinite().all() for p in model.parameters()
               if p.requires_grad)


def test_without_padding_the_parts_are_mmdets_and_the_plain_pyramid():
    torch.manual_seed(0)
    cfg = small_config(MASKED).model
    x = torch.randn(1, 32, 8, 8)
    plain = SimpleFeaturePyramid(32, 16)
    masked = SimpleFeaturePyramid(32, 16, masked=True)
    masked.load_state_dict(plain.state_dict())
    maps = plain(x)
    for a, b in zip(masked(x), maps, strict=True):
        torch.testing.assert_close(a, b)
    head = Config(dict(cfg.rpn_head)).to_dict()
    head.pop('type')
    test_cfg = cfg.test_cfg.rpn
    ours, theirs = (kind(**head, train_cfg=cfg.train_cfg.rpn, test_cfg=test_cfg)
                    for kind in (MaskedRPNHead, RPNHead))
    theirs.load_state_dict(ours.state_dict())
    for a, b in zip(ours(maps), theirs(maps), strict=True):
        for one, other in zip(a, b, strict=True):
            torch.testing.assert_close(one, other)
    extractor = dict(cfg.roi_head.bbox_roi_extractor)
    extractor.pop('type')
    rois = torch.tensor([[0, 3., 5., 60., 90.], [0, 0., 0., 128., 128.]])
    torch.testing.assert_close(
        MaskedRoIExtractor(**extractor)(maps[:4], rois),
        SingleRoIExtractor(**extractor)(maps[:4], rois))


def test_border_is_extended_by_replication():
    x = torch.randn(1, 3, 4, 5)
    padded = F.pad(x, (0, 3, 0, 2))
    want = F.pad(F.pad(x, (0, 1, 0, 1), mode='replicate'), (0, 2, 0, 1))
    assert torch.equal(extend_border(padded), want)


def detecting(name, weights=None):
    """A detector of full size with sure heads, so that random weights find something."""
    cfg = load(name)
    cfg.model.backbone.init_cfg = None
    model = build(cfg)
    if weights is not None:
        model.backbone.load_pretrained(str(weights))
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for key, parameter in model.named_parameters():
            if key.endswith('bias') and 'key_bias' not in key:
                parameter.add_(.05 * torch.randn(parameter.shape, generator=generator))
        model.rpn_head.rpn_cls.weight.mul_(30)
        model.rpn_head.rpn_reg.weight.mul_(2)
        model.roi_head.bbox_head.fc_cls.weight.mul_(30)
        model.roi_head.bbox_head.fc_cls.bias[-1] -= 2  # less background
        model.roi_head.bbox_head.fc_reg.weight.mul_(5)
        model.roi_head.mask_head.conv_logits.weight.mul_(30)
    model.roi_head.test_cfg.mask_thr_binary = -1  # soft masks, 0 to 255
    return model.eval()


@pytest.mark.slow
@pytest.mark.parametrize('name', [MASKED, DMST], ids=['deit', 'dmst'])
def test_full_size_on_real_images(name, shared_dir, number=3):
    """Boxes, scores and masks at 1024² are those of the square canvas, on photographs."""
    from mmengine.dataset import pseudo_collate

    from mmext.cli.benchmark_data import spread_by_shape, test_data
    weights = shared_dir / 'weights/vit_small_patch16_224_pretrained.safetensors'
    model = detecting(name, weights if name == MASKED and weights.is_file() else None)
    data = test_data(str(CONFIG_DIR / name), str(shared_dir / 'data/coco_mini'))[1]
    for index in spread_by_shape(data, number):
        found = []
        for divisor in (1024, 16):
            model.data_preprocessor.val_pad_size_divisor = divisor
            with torch.no_grad():
                batch = model.data_preprocessor(pseudo_collate([data[index]]), False)
                [sample] = model(**batch, mode='predict')
            found.append((sample.pred_instances, batch['inputs'].shape[-2:]))
        (a, square), (b, own) = found
        assert tuple(square) == (1024, 1024) and min(own) < 1024
        assert len(a) == len(b) > 20
        # equal scores may change places: every box has its own partner
        far = (a.bboxes[:, None] - b.bboxes).abs().amax(-1) + (a.labels[:, None] != b.labels)
        b = b[far.argmin(1)]
        assert far.argmin(1).unique().numel() == len(a)
        assert torch.equal(a.labels, b.labels)
        torch.testing.assert_close(a.bboxes, b.bboxes, atol=1e-3, rtol=0)
        torch.testing.assert_close(a.scores, b.scores, atol=1e-3, rtol=0)
        assert (a.masks.int() - b.masks.int()).abs().max() <= 1  # of 255
