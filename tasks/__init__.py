"""The programs: each joins the model (`bert`) and the ranks (`distributed`) into one console command."""

from tasks.installation import check_packages

check_packages()
