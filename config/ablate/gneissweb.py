# The rows GW of the paper's Tables 2 to 5 and 8: the same models, trained on GneissWeb from scratch.
# On top of any of its GPT-2 recipes.
#   python data/gneissweb/prepare.py
#   python train.py config/cofrgenet_f.py config/ablate/gneissweb.py --out_dir=out/f_gw
dataset = "data/gneissweb/gpt2"
