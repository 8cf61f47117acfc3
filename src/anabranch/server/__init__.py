"""The processes of `anabranch serve`: sockets, one broker process, and the supervisor of several."""
