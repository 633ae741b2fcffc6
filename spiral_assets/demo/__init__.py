"""`make demo`: images, text and video, each taken through the whole system by the Dagster job."""
