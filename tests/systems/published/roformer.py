"""RoFormer's size: transformers' RoFormerForMaskedLM without its table of angles."""

SIZES = {"roformer_base": 124_099_664}
