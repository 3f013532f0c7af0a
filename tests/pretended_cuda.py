"""A GPU for tests where there is none: CPU tensors that say they are on 'cuda:0'.

Every operator is seen on its way (``torch.utils._python_dispatch``), computed on the CPU and
checked as a GPU would: tensors of both devices in one call are an error, and what makes the host
wait for the device is noted. Unlike ``FakeTensorMode`` the tensors have values, so that losses, NMS
and sampling run, too. It knows nothing of kernels: a dtype that CUDA alone lacks is not found.
"""

import sys
from collections import Counter
from contextlib import contextmanager
from unittest.mock import patch

import torch
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_flatten, tree_map

aten = torch.ops.aten
CUDA = torch.device('cuda:0')
# results whose size depends on values, and checks of values by the host
WAITS = {
    aten._local_scalar_dense, aten.nonzero, aten.masked_select, aten._unique2, aten.unique_dim,
    aten.unique_consecutive, aten.bincount, aten.equal, aten.is_same_size}
MOVES = {aten._to_copy, aten.copy_, aten.copy}
INDEXING = {aten.index, aten.index_put, aten.index_put_, aten._index_put_impl_,
            aten._unsafe_index, aten._unsafe_index_put}


class Pretended(torch.Tensor):
    """Holds ``value``, a CPU tensor. Autograd in C++ sees ``device``; Python sees 'cuda:0'."""

    @staticmethod
    def __new__(cls, value, device):
        return torch.Tensor._make_wrapper_subclass(
            cls, value.shape, strides=value.stride(), storage_offset=value.storage_offset(),
            dtype=value.dtype, layout=value.layout, device=device)

    def __init__(self, value, device):
        self.value = value

    device = property(lambda self: CUDA)
    is_cuda = property(lambda self: True)
    is_cpu = property(lambda self: False)
    is_meta = property(lambda self: False)
    __torch_function__ = torch._C._disabled_torch_function_impl

    def new_tensor(self, data, dtype=None, device=None):  # C++ would make it past the mode
        return torch.tensor(data, dtype=dtype or self.dtype).to(device or CUDA)

    @classmethod
    def __torch_dispatch__(cls, func, types, args=(), kwargs=None):
        raise AssertionError(f'{func} outside of PretendedCuda')


class PretendedCuda(TorchDispatchMode):
    """The mode; ``waits`` counts (kind, operator, line of code) of everything that waited.

    Args:
        backward: autograd's engine wants a real driver for 'cuda': with True it is told 'meta'.
            Autocast knows 'cuda' alone, so keep False for it.
    """

    def __init__(self, backward: bool = False):
        super().__init__()
        self.cpp_device = torch.device('meta') if backward else CUDA
        self.waits = Counter()

    def __enter__(self):
        self.lifted = torch._C._only_lift_cpu_tensors()
        torch._C._set_only_lift_cpu_tensors(True)  # as FakeTensorMode: no driver is called
        torch._C._ensureCUDADeviceGuardSet()
        self.driver = patch('torch.cuda._lazy_init')
        self.driver.start()
        self.cudnn = torch.backends.cudnn.enabled
        torch.backends.cudnn.enabled = False  # its batch norm is an operator of its own
        self.overwrite = torch.__future__.get_overwrite_module_params_on_conversion()
        torch.__future__.set_overwrite_module_params_on_conversion(True)
        return super().__enter__()

    def __exit__(self, *error):
        super().__exit__(*error)
        self.driver.stop()
        torch.backends.cudnn.enabled = self.cudnn
        torch.__future__.set_overwrite_module_params_on_conversion(self.overwrite)
        torch._C._set_only_lift_cpu_tensors(self.lifted)

    def wrap(self, value):
        return Pretended(value, self.cpp_device) if isinstance(value, torch.Tensor) else value

    def note(self, kind, func):
        self.waits[kind, func.__name__.split('.')[0], where()] += 1

    @contextmanager
    def counting(self):
        """Yields a fresh Counter of what waits meanwhile."""
        before, self.waits = self.waits, Counter()
        try:
            yield self.waits
        finally:
            self.waits = before

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        kwargs = dict(kwargs or {})
        tensors = [x for x in tree_flatten((args, kwargs))[0] if isinstance(x, torch.Tensor)]
        packet = func.overloadpacket
        on_device = any(isinstance(x, Pretended) for x in tensors)
        target = kwargs.get('device')
        asked = target is not None and torch.device(target).type in ('cuda', 'meta')
        if packet in MOVES:
            source = args[0] if packet is aten._to_copy else args[1]
            to_device = (asked or (target is None and on_device) if packet is aten._to_copy
                         else isinstance(args[0], Pretended))
            from_device = isinstance(source, Pretended)
            if from_device != to_device and not (to_device and source.dim() == 0):
                self.note('to device' if to_device else 'to host', func)
            result_on_device = to_device
        else:
            result_on_device = on_device or asked
            if on_device:
                self.check(func, packet, args, tensors)
        plain = tree_map(lambda x: x.value if isinstance(x, Pretended) else x, (args, kwargs))
        if asked:
            plain[1]['device'] = torch.device('cpu')
        out = func(*plain[0], **plain[1])
        if func._schema.is_mutable:  # returns what it wrote to
            written = {id(x.value): x for x in tensors if isinstance(x, Pretended)}
            return tree_map(lambda x: written.get(id(x), x), out)
        return tree_map(self.wrap, out) if result_on_device else out

    def check(self, func, packet, args, tensors):
        if packet in WAITS or func is aten.repeat_interleave.Tensor:
            self.note('read', func)
        if str(packet) == 'torchvision.nms':
            self.note('read', func)
        if packet in INDEXING:
            indices = [x for x in args[1] if x is not None]
            if not all(isinstance(x, Pretended) for x in indices):
                self.note('to device', func)
            value = args[2] if len(args) > 2 else None
            filled = value is not None and value.numel() == 1 and not isinstance(value, Pretended)
            if any(x.dtype in (torch.bool, torch.uint8) for x in indices) and not filled:
                self.note('read', func)
            tensors = [args[0]] + ([value] if value is not None else [])
        elsewhere = [x for x in tensors if not isinstance(x, Pretended) and x.dim()]
        if elsewhere:
            raise RuntimeError(
                f'{func}: tensors on cuda:0 and on the CPU, the latter {tuple(elsewhere[0].shape)} '
                f'of {elsewhere[0].dtype}, at {where()}')


class RecordAttention(TorchFunctionMode):
    """Arguments of every ``scaled_dot_product_attention``: q, k, v, mask, dropout, causal."""

    def __init__(self):
        super().__init__()
        self.calls = []

    def __torch_function__(self, func, types, args=(), kwargs=None):
        if func is torch.nn.functional.scaled_dot_product_attention:
            given = dict(zip(('query', 'key', 'value', 'attn_mask', 'dropout_p', 'is_causal'), args,
                             strict=False)) | (kwargs or {})
            self.calls.append(given)
        return func(*args, **(kwargs or {}))


def where() -> str:
    """File and line of the nearest caller in a model's code."""
    frame = sys._getframe(1)
    while frame is not None:
        name = frame.f_code.co_filename
        for package in ('/mmext/', '/mmdet/', '/mmengine/', '/mmcv/', '/mmpretrain/', '/timm/'):
            if package in name:
                return f'{package.strip("/")}/{name.rsplit(package)[-1]}:{frame.f_lineno}'
        frame = frame.f_back
    return 'elsewhere'
