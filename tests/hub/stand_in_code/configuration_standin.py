"""A config that is in no library: only the code beside the weights knows it."""

from transformers import PreTrainedConfig


class StandInConfig(PreTrainedConfig):
    """Three numbers."""

    model_type = "seqpe_zoo_standin"

    def __init__(self, vocab_size=64, width=16, max_position_embeddings=32, **kwargs):
        self.vocab_size, self.width, self.max_position_embeddings = vocab_size, width, max_position_embeddings
        super().__init__(**kwargs)
