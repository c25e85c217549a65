"""What a site knows: its own rows, by column."""

import numpy as np
import pandas
from flwr.app import Context

import proxskip as ps
from proxskip.flower import client_app


def make_oracle(context: Context):
    """Cox's model of the site's own file."""
    data = np.load(str(context.node_config["data"]))
    frame = pandas.DataFrame(data["values"], columns=data["columns"])
    return ps.Cox(frame, time="week", event="arrest")


app = client_app(make_oracle)
