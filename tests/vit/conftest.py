"""Tests of the ViT see timm with our names, whatever an earlier test did."""

import pytest

from seqpe_zoo.timm_models import register_timm


@pytest.fixture(autouse=True)
def _registered() -> None:
    register_timm()
