"""Schema of a mask of key tokens: which ones an evaluator run finds, and in which texts."""

from typing import Annotated, Literal

from pydantic import Field

from rope_jax.config.types import FolderName, Frozen, Length, PositiveInt, Seed, Step


class KeyTokensConfig(Frozen):
    """Key tokens for LongPPL: those that the far context makes likely."""

    name: FolderName | None = Field(
        None, description="name of the file; null: the run's and short, such as long-512"
    )
    step: Step = None
    split: Literal["test", "validation"] = Field(
        "test", description="which split to read, the one that sweeps read"
    )
    short: Length = Field(
        description="K: near context ends K to K + s − 1 tokens before a target; the window of "
        "the models that will be measured"
    )
    stride: PositiveInt | None = Field(None, description="s; null: K/4")
    alpha: Annotated[float, Field(gt=0, allow_inf_nan=False)] = Field(
        2.0,
        description="a key token's log-probability is higher by more than that, in nats, with "
        "the evaluator's whole window before it than with near context alone",
    )
    beta: Annotated[float, Field(lt=0, allow_inf_nan=False)] = Field(
        -2.0,
        description="a key token's log-probability is higher than that, in nats, with the whole "
        "window before it",
    )
    max_documents: PositiveInt = Field(64, description="documents to read, longer than K + s")
    seed: Seed = Field(0, description="seed of the choice of documents")

    @property
    def s(self) -> int:
        """Targets per window of near context."""
        return self.stride or max(1, self.short // 4)

    def check_window(self, window: int) -> None:
        """ValueError, which begins with the key, if an evaluator's window is too short."""
        if window <= self.short + self.s:
            raise ValueError(
                f"short: {self.short:,} and the stride of {self.s:,} are not less than the "
                f"evaluator's window of {window:,} tokens; take a run trained on longer windows"
            )
