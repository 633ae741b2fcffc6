"""What every component is: fields in YAML, checked when they are read, and a factory that they are given to."""

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

import dagster as dg

from spiral_assets.conventions import RESOURCE
from spiral_assets.reading.attributes import strict_model, wrong_attributes
from spiral_assets.reading.location import Path, need_sound_location
from spiral_assets.reading.positions import Wrong, need_single_keys, placed, refuse

if TYPE_CHECKING:
    from typing import Self

    from pydantic import BaseModel


class Face(dg.Component, dg.Model, dg.Resolvable):
    """A component that says what is wrong in its YAML when it is read, with file and line."""

    @classmethod
    def get_model_cls(cls) -> "type[BaseModel]":
        """Return the model by which attributes are read."""
        return strict_model(cls, cls.model())

    @classmethod
    def load(cls, attributes: "BaseModel | None", context: dg.ComponentLoadContext) -> "Self":
        """Make the component from its attributes.

        Args:
            attributes: as YAML has them.
            context: of the load.

        Raises:
            DagsterInvalidDefinitionError: says file and line.
        """
        need_single_keys(context)
        refuse(context, wrong_attributes(attributes))
        with placed(context):
            return super().load(attributes, context)

    def build_defs(self, context: dg.ComponentLoadContext) -> dg.Definitions:
        """Return the definitions.

        Args:
            context: of the load.

        Raises:
            DagsterInvalidDefinitionError: something is wrong; says file and line.
        """
        refuse(context, list(self.wrong()))
        with placed(context):
            made = self.definitions_of(context)
        need_sound_location(context, made)
        return made

    def definitions_of(self, context: dg.ComponentLoadContext) -> dg.Definitions:
        """Return the definitions of attributes that are right.

        Args:
            context: of the load.
        """
        raise NotImplementedError

    def wrong(self) -> Iterator[Wrong]:
        """Yield what is wrong in the attributes, where it can be told without an import of a plan."""
        yield from ()

    def saved_streams(self) -> Sequence[str]:
        """Return the names of the streams that it saves."""
        return ()

    def opened_streams(self) -> Sequence[tuple[Path, str]]:
        """Return the saved streams that it opens: the keys that lead to each, and its name."""
        return ()

    def needed_assets(self) -> Sequence[tuple[Path, str]]:
        """Return the assets that the location must have: the keys that lead to each, and its key."""
        return ()

    def catalog_name(self) -> str:
        """Return the name of its catalog."""
        return RESOURCE

    def catalog_location(self) -> str | None:
        """Return where the catalog lies, from the component that says so."""
        return None
