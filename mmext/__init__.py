"""mmext: linear white-box and bias-pruned attention for MMDetection and MMPretrain.

Importing the package is cheap: it imports neither torch nor any OpenMMLab package.
"""

__version__ = '0.1.0'
