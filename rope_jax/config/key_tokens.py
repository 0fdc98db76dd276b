"""Schema of key tokens: those that only far context makes likely, as LongPPL scores them."""

from typing import Annotated, Literal

from pydantic import Field, model_validator

from rope_jax.config.data import DataConfig, check_read_whole
from rope_jax.config.types import FolderName, Frozen, Length, PositiveFloat, PositiveInt, Seed, Step


class KeyTokensConfig(Frozen):
    """Key tokens for LongPPL: those that the far context makes likely."""

    name: FolderName | None = Field(None, description="null: the run's and short, such as long-512")
    step: Step = None
    split: Literal["test", "validation"] = Field("test", description="the split that sweeps read")
    short: Length = Field(description="K, near context; the measured models' window")
    stride: PositiveInt | None = Field(None, description="s; null: K/4")
    alpha: PositiveFloat = Field(2.0, description="least gain in log p over near context, in nats")
    beta: Annotated[float, Field(lt=0, allow_inf_nan=False)] = Field(
        -2.0, description="least log p with the whole window"
    )
    data: DataConfig | None = Field(None, description="texts, as in the sweep; null: the run's")
    max_documents: PositiveInt = Field(64, description="documents to read, longer than K + s")
    seed: Seed = Field(0, description="seed of the choice of documents")

    @model_validator(mode="after")
    def _nothing_is_trained(self) -> "KeyTokensConfig":
        check_read_whole(self.data)
        return self

    @property
    def s(self) -> int:
        return self.stride or max(1, self.short // 4)

    def check_window(self, window: int) -> None:
        """ValueError, which begins with the key, if an evaluator's window is too short."""
        if window <= self.short + self.s:
            raise ValueError(
                f"short: {self.short:,} and the stride of {self.s:,} are not less than the "
                f"evaluator's window of {window:,} tokens; take a run trained on longer windows"
            )
