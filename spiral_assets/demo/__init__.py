"""`make demo`: take images, text and video from data to a trained model, kill each training once, and prove the resume."""
