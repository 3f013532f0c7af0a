"""torch.compile of the backbone; add to `_base_` and `custom_hooks = [..., _base_.compiled]`.

Pays off on GPUs with images of one size.
"""

compiled = dict(type='mmext.CompileBackboneHook', backend='inductor')
