"""DeBERTa's sizes: transformers' `MaskedLM` (`legacy=False`) with the decoder's positions.

Version 3: its bare discriminator, the head of replaced tokens, and a generator of half the layers.
"""

from support.baselines import share, unigram


def _third(discriminator: int, generator: int, width: int) -> int:
    head = 2 * width + width * (width + 1) + width + 1
    return discriminator + head + generator + 512 * width


SIZES = {
    "deberta_base": 139_244_121 + 512 * 768,
    "deberta_large": 406_264_921 + 512 * 1024,
    "deberta_v2_xlarge": 887_085_156 + 512 * 1536,
    "deberta_v3_small": _third(141_304_320, 120_760_932, 768),
    "deberta_v3_base": _third(183_831_552, 142_024_548, 768),
    "deberta_v3_large": _third(434_012_160, 284_037_220, 1024),
}
TRAINS = {"deberta_v3_mini": [(unigram("mlm_nll"), 0.05), (share("rtd"), 0.003)]}
