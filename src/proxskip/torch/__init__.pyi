from proxskip.problems.torch_model import Model as Model
from proxskip.torch.conformance import check_outer_steps as check_outer_steps
from proxskip.torch.launch import init_process_group as init_process_group
from proxskip.torch.optimizer import ScaffnewOptimizer as Scaffnew  # noqa: F401
from proxskip.torch.partitions import plot_split as plot_split
from proxskip.torch.partitions import split as split
from proxskip.torch.published import recipe as recipe
from proxskip.torch.published import recipes as recipes
from proxskip.torch.settings import every_round as every_round
from proxskip.torch.training import Trained as Trained
from proxskip.torch.training import resume as resume
from proxskip.torch.training import train as train
from proxskip.torch.wire import SynchronizationError as SynchronizationError
