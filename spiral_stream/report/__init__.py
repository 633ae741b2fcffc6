"""What a relation looks like: its columns, some samples, and pictures of how its labels are spread over storage."""
