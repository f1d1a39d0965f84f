//! How much memory this container may use: its cgroup's limit, or the machine's memory.

use std::fs;
use std::path::Path;

const CGROUP_FILES: [&str; 2] = ["memory.max", "memory/memory.limit_in_bytes"];

/// Bytes; what a container sees of its own cgroup.
pub fn usable() -> u64 {
    usable_by(Path::new("/sys/fs/cgroup"))
}

fn usable_by(cgroup_root: &Path) -> u64 {
    let limit = |file: &&str| fs::read_to_string(cgroup_root.join(file)).ok()?.trim().parse().ok();
    CGROUP_FILES.iter().filter_map(limit).chain([of_the_machine()]).min().unwrap_or(u64::MAX)
}

fn of_the_machine() -> u64 {
    // SAFETY: they have no preconditions.
    let (pages, page_size) = unsafe { (libc::sysconf(libc::_SC_PHYS_PAGES), libc::sysconf(libc::_SC_PAGESIZE)) };
    u64::try_from(pages).unwrap_or(0).saturating_mul(u64::try_from(page_size).unwrap_or(0))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_lowest_limit_counts_and_none_is_the_machines() {
        let root = std::env::temp_dir().join(format!("container-memory-{}", std::process::id()));
        fs::create_dir_all(root.join("memory")).unwrap();
        assert_eq!(usable_by(&root), of_the_machine());
        fs::write(root.join("memory.max"), "max\n").unwrap();
        assert_eq!(usable_by(&root), of_the_machine());
        fs::write(root.join("memory.max"), "300000\n").unwrap();
        assert_eq!(usable_by(&root), 300_000);
        fs::write(root.join("memory/memory.limit_in_bytes"), "200000\n").unwrap();
        assert_eq!(usable_by(&root), 200_000);
        fs::remove_dir_all(root).unwrap();
    }
}
