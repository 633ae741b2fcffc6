"""What is told of relations: tables and schemas as Dagster shows them, and what checks find, with the advice that applies."""
