"""Feature maps of a picture of 518 x 392 from a ViT with SeqPE, as for segmentation or depth.

python examples/dense_features.py

With `pretrained=True, keep_native=True` these are DINOv2's own features until SeqPE is trained.
"""

import timm
import torch

import seqpe_zoo  # noqa: F401 (tells timm of the encodings)

model = timm.create_model(
    "vit_small_patch14_dinov2",
    pos_embed="seqpe",
    img_size=224,  # of training; SeqPE encodes the rows and columns of larger pictures, nothing is resized
    dynamic_img_size=True,
    features_only=True,
    out_indices=(2, 5, 8, 11),
).eval()

if __name__ == "__main__":
    with torch.inference_mode():
        for features in model(torch.randn(1, 3, 518, 392)):
            print(tuple(features.shape))  # (1, 384, 37, 28)
