"""The one template of all model cards. `{{name}}` is filled by `card.py`; an unknown name is an error."""

TEMPLATE = """\
---
{{metadata}}
---

# {{title}}

{{summary}}

{{facts_table}}

## Usage

{{usage}}

## Position encoding

{{position_encoding}}

## Results

{{results}}

## Training

{{training}}

## Limits

{{limits}}

## Licence

{{licence}}

## Citation

```bibtex
{{citation}}
```

## Provenance

{{provenance}}
"""

CITATION = """\
@article{li2025seqpe,
  title   = {{SeqPE}: Transformer with Sequential Position Encoding},
  author  = {Li, Huayang and Liu, Yahui and Sun, Hongyu and Cai, Deng and Cui, Leyang and Bi, Wei
             and Zhao, Peilin and Watanabe, Taro},
  journal = {arXiv preprint arXiv:2506.13277},
  year    = {2025}
}"""

PAPER_URL = "https://arxiv.org/abs/2506.13277"
