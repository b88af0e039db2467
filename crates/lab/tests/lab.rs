use std::process::ExitCode;

fn main() -> ExitCode {
    let mut args = std::env::args().skip(1);
    if let Some(name) = args.next().filter(|name| fairweir_lab::is_agent(name)) {
        return fairweir_lab::agent_main(&name);
    }
    ExitCode::SUCCESS
}
