"""Definitions from a file of YAML documents, for a code location that is no ``dg`` project.

In a ``dg`` project the same documents lie in ``defs/<name>/defs.yaml``, and Dagster finds them.
"""

from pathlib import Path

import dagster as dg

from spiral_assets.reading.code_references import linked
from spiral_assets.reading.file_tree import definitions_of_file


def definitions_from(path: Path) -> dg.Definitions:
    """Return the definitions of the components that a file declares.

    Templates (``{{ env.NAME }}``) and ``post_processing`` work as in a ``dg`` project. A `RelationCatalog` looks what there is
    when its state is missing, and when a development server loads the file; it stores that in ``$DAGSTER_HOME/defs_state``, or
    next to the file in ``.local_defs_state``.

    Args:
        path: of YAML documents, each with ``type`` and ``attributes``.

    Raises:
        DagsterInvalidDefinitionError: a document is wrong; says file and line.

    Examples:
        >>> from spiral_assets.yaml_definitions import definitions_from
        >>> size = Path("upkeep.yaml").write_text("type: spiral_assets.components.Upkeep")
        >>> [job.name for job in definitions_from(Path("upkeep.yaml")).jobs]
        ['remove_dead_caches']
    """
    return linked(definitions_of_file(path), path.absolute().parent)
