"""Problems: what is minimised, how it is split over clients, and where its data come from."""
