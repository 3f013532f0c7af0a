"""``python -m mmext`` is the console command ``mmext``."""

from mmext.cli.main import main

if __name__ == '__main__':
    main()
