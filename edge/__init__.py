"""The vehicle node: frames out, masks in, one CSV row a frame."""
